//! A small S3 server that misbehaves: it fails, throttles, loses, cuts or trickles a share of its answers.
//!
//! It speaks what the client asks: whole objects, ranges, conditional puts, deletions, lists. It checks no signature.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Variables with which clients talk to a server; it checks none of them.
pub const CREDENTIALS: [(&str, &str); 3] =
    [("AWS_REGION", "here"), ("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret")];

/// The fate of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It is carried out and answered.
    Served,
    /// 503, nothing is done.
    Throttled,
    /// 500, nothing is done.
    Failed,
    /// It is carried out, and the connection closed without an answer.
    Lost,
    /// It is carried out, and the connection closed in the middle of the body.
    Cut,
    /// It is carried out, and of the body, or of an answer without one, a byte comes every 100 milliseconds.
    Trickled,
}

type Fates = Arc<dyn Fn(u64) -> Fate + Send + Sync>;

#[derive(Default)]
struct State {
    objects: Mutex<BTreeMap<String, (u64, Vec<u8>)>>,
    requests: AtomicU64,
    received: AtomicU64,
    versions: AtomicU64,
    bare_tags: AtomicBool,
    tags: Mutex<Tags>,
}

/// How a server tells versions of objects apart.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Tags {
    /// By tags, which it compares where it is asked to.
    #[default]
    Compared,
    /// By tags, which it does not compare for reading.
    Ignored,
    /// By weak tags, which never count as equal.
    Weak,
    /// By the time of the last change alone.
    None,
}

/// A server on a port of its own; its threads end with the process.
pub struct Server {
    /// Its URL.
    pub endpoint: String,
    state: Arc<State>,
}

impl Server {
    /// Starts one; `fates` says what becomes of each request, by its number.
    pub fn start(fates: impl Fn(u64) -> Fate + Send + Sync + 'static) -> Server {
        let fates: Fates = Arc::new(fates);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(State::default());
        let served = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A body follows its head in a packet of its own, and must not wait for an acknowledgement.
                let _ = stream.set_nodelay(true);
                let (state, fates) = (served.clone(), fates.clone());
                std::thread::spawn(move || connection(&state, &fates, stream));
            }
        });
        Server { endpoint, state }
    }

    /// From now on `If-Match` must have the tag without quotes, as in Ceph's gateway 16.2.
    pub fn compare_bare_tags(&self) {
        self.state.bare_tags.store(true, Ordering::Relaxed);
    }

    /// From now on versions are told apart like this.
    pub fn give_tags(&self, tags: Tags) {
        *self.state.tags.lock().unwrap() = tags;
    }

    /// Puts an object without a request.
    pub fn put(&self, path: &str, bytes: Vec<u8>) {
        let version = self.state.versions.fetch_add(1, Ordering::SeqCst);
        self.state.objects.lock().unwrap().insert(path.to_owned(), (version, bytes));
    }

    /// Changes an object as the store's owner could; says whether there is one.
    pub fn change(&self, path: &str, change: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut objects = self.state.objects.lock().unwrap();
        objects.get_mut(path).map(|(_, bytes)| change(bytes)).is_some()
    }

    /// Requests so far.
    pub fn requests(&self) -> u64 {
        self.state.requests.load(Ordering::SeqCst)
    }

    /// Bytes of the bodies of requests so far.
    pub fn received(&self) -> u64 {
        self.state.received.load(Ordering::SeqCst)
    }
}

struct Request {
    method: String,
    path: String,
    query: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

struct Answer {
    status: &'static str,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

fn connection(state: &State, fates: &Fates, stream: TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while let Some(request) = read(&mut reader) {
        state.received.fetch_add(request.body.len() as u64, Ordering::SeqCst);
        let fate = fates(state.requests.fetch_add(1, Ordering::SeqCst));
        let answer = match fate {
            Fate::Throttled => error("503 Slow Down", "SlowDown"),
            Fate::Failed => error("500 Internal Server Error", "InternalError"),
            Fate::Served | Fate::Lost | Fate::Cut | Fate::Trickled => carry_out(state, &request),
        };
        let is_over = match fate {
            Fate::Lost => true,
            _ => send(&stream, &request, &answer, fate).is_err() || fate == Fate::Cut,
        };
        if is_over {
            let _ = stream.shutdown(std::net::Shutdown::Both);
            return;
        }
    }
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let len = headers.get("content-length").and_then(|len| len.parse().ok()).unwrap_or(0);
    let mut body = vec![0; len];
    reader.read_exact(&mut body).ok()?;
    Some(Request { method, path: decoded(path), query: query.to_owned(), headers, body })
}

/// A path of a URL as text.
fn decoded(path: &str) -> String {
    let mut parts = path.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        bytes.extend(part.get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok()));
        bytes.extend_from_slice(part.get(2..).unwrap_or_default().as_bytes());
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn send(mut stream: &TcpStream, request: &Request, answer: &Answer, fate: Fate) -> std::io::Result<()> {
    let mut out = format!("HTTP/1.1 {}\r\n", answer.status);
    answer.headers.iter().for_each(|(name, value)| out += &format!("{name}: {value}\r\n"));
    if !answer.headers.iter().any(|(name, _)| *name == "Content-Length") {
        out += &format!("Content-Length: {}\r\n", answer.body.len());
    }
    let head = (out + "\r\n").into_bytes();
    let len = if fate == Fate::Cut { answer.body.len() / 2 } else { answer.body.len() };
    let body = if request.method == "HEAD" { &[] } else { &answer.body[..len] };
    match fate {
        Fate::Trickled if body.is_empty() => trickle(stream, &head),
        Fate::Trickled => stream.write_all(&head).and_then(|()| trickle(stream, body)),
        _ => stream.write_all(&head).and_then(|()| stream.write_all(body)),
    }
}

/// Never falls silent, and takes for ever. An error when the client has gone.
fn trickle(mut stream: &TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    for byte in bytes {
        stream.write_all(&[*byte])?;
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    Ok(())
}

fn error(status: &'static str, code: &str) -> Answer {
    let body = format!("<Error><Code>{code}</Code></Error>").into_bytes();
    Answer { status, headers: Vec::new(), body }
}

fn carry_out(state: &State, request: &Request) -> Answer {
    let mut objects = state.objects.lock().unwrap();
    let found = objects.get(&request.path);
    let tag = |version: u64| ("ETag", format!("\"{version}\""));
    match request.method.as_str() {
        "GET" if request.query.contains("list-type=2") => list(&objects, request),
        "PUT" => {
            let must_match = request.headers.get("if-match");
            let quote = if state.bare_tags.load(Ordering::Relaxed) { "" } else { "\"" };
            let is_same = must_match
                .is_none_or(|tag| found.is_some_and(|(version, _)| *tag == format!("{quote}{version}{quote}")));
            let must_be_new = request.headers.contains_key("if-none-match");
            if !is_same || (must_be_new && found.is_some()) {
                return error("412 Precondition Failed", "PreconditionFailed");
            }
            let version = state.versions.fetch_add(1, Ordering::SeqCst);
            objects.insert(request.path.clone(), (version, request.body.clone()));
            Answer { status: "200 OK", headers: vec![tag(version)], body: Vec::new() }
        }
        "DELETE" => {
            objects.remove(&request.path);
            Answer { status: "204 No Content", headers: Vec::new(), body: Vec::new() }
        }
        _ => found.map_or_else(
            || error("404 Not Found", "NoSuchKey"),
            |(version, bytes)| {
                let tags = *state.tags.lock().unwrap();
                let is_other = |tag: &String| tags == Tags::Weak || *tag != format!("\"{version}\"");
                if tags != Tags::Ignored && request.headers.get("if-match").is_some_and(is_other) {
                    return error("412 Precondition Failed", "PreconditionFailed");
                }
                // Each version is a second younger.
                let (minute, second) = (version / 60 % 60, version % 60);
                let mut headers = vec![("Last-Modified", format!("Fri, 27 Nov 2026 10:{minute:02}:{second:02} GMT"))];
                match tags {
                    Tags::Compared | Tags::Ignored => headers.push(tag(*version)),
                    Tags::Weak => headers.push(("ETag", format!("W/\"{version}\""))),
                    Tags::None => {}
                }
                object(request, bytes, headers)
            },
        ),
    }
}

/// An object or a range of it.
fn object(request: &Request, bytes: &[u8], mut headers: Vec<(&'static str, String)>) -> Answer {
    let bounds = request.headers.get("range").and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let Some((from, last)) = bounds else {
        headers.push(("Content-Length", bytes.len().to_string()));
        return Answer { status: "200 OK", headers, body: bytes.to_vec() };
    };
    let (from, end) = (from.parse().unwrap(), (last.parse::<usize>().unwrap() + 1).min(bytes.len()));
    if from >= end {
        return error("416 Range Not Satisfiable", "InvalidRange");
    }
    headers.push(("Content-Range", format!("bytes {from}-{}/{}", end - 1, bytes.len())));
    Answer { status: "206 Partial Content", headers, body: bytes[from..end].to_vec() }
}

/// All objects of the bucket below the prefix that is asked for.
fn list(objects: &BTreeMap<String, (u64, Vec<u8>)>, request: &Request) -> Answer {
    let prefix = request.query.split('&').find_map(|part| part.strip_prefix("prefix=")).unwrap_or_default();
    let below = format!("{}/{}", request.path.trim_end_matches('/'), prefix.replace("%2F", "/"));
    let bucket = format!("{}/", request.path.trim_end_matches('/'));
    let mut body = "<ListBucketResult>".to_owned();
    for (path, (version, bytes)) in objects.iter().filter(|(path, _)| path.starts_with(&below)) {
        let (key, len) = (&path[bucket.len()..], bytes.len());
        body += &format!("<Contents><Key>{key}</Key><LastModified>2026-11-27T10:00:00.000Z</LastModified>");
        body += &format!("<ETag>\"{version}\"</ETag><Size>{len}</Size></Contents>");
    }
    Answer { status: "200 OK", headers: Vec::new(), body: (body + "</ListBucketResult>").into_bytes() }
}

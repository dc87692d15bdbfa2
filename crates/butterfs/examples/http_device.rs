//! A device of one's own: an image on a web server, read by range requests through a cache.
//!
//! `cargo run -p butterfs --example http_device`
//!
//! It brings its own little web server on the loopback interface. A real program would use an HTTP client that knows
//! TLS, retries and keeps connections; the device would look the same.

use butterfs::{Access, BlockDevice, Builder, Device, Filesystem, Log, MemoryDevice, Mkfs};
use quick_cache::sync::Cache;
use std::error::Error;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that one request asks for.
const BLOCK: u64 = 256 << 10;
/// Blocks that the cache holds.
const CACHED_BLOCKS: usize = 64;

/// The device: bytes of one URL.
#[derive(Debug)]
struct HttpDevice {
    server: SocketAddr,
    len: u64,
    cache: Arc<Cache<u64, Arc<Vec<u8>>>>,
    requests: Arc<AtomicU64>,
}

impl HttpDevice {
    fn connect(server: SocketAddr) -> io::Result<HttpDevice> {
        let len = request(server, "HEAD", None)?.0;
        Ok(HttpDevice { server, len, cache: Arc::new(Cache::new(CACHED_BLOCKS)), requests: Arc::default() })
    }

    /// A block, from the cache if it is there. Threads that want the same block wait for one request.
    fn block(&self, number: u64) -> io::Result<Arc<Vec<u8>>> {
        self.cache.get_or_insert_with(&number, || self.requested(number))
    }

    fn requested(&self, number: u64) -> io::Result<Arc<Vec<u8>>> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let range = (number * BLOCK, ((number + 1) * BLOCK).min(self.len));
        let block = Arc::new(request(self.server, "GET", Some(range))?.1);
        if block.len() as u64 != range.1 - range.0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the server sent fewer bytes than it was asked for",
            ));
        }
        Ok(block)
    }
}

impl BlockDevice for HttpDevice {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.len) {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a read outside of the device"));
        }
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let block = self.block(at / BLOCK)?;
            let from = (at % BLOCK) as usize;
            let count = (block.len() - from).min(buf.len() - done);
            buf[done..done + count].copy_from_slice(&block[from..from + count]);
            done += count;
        }
        Ok(())
    }

    fn write_at(&self, _offset: u64, _data: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn name(&self) -> String {
        format!("http://{}/disk.img", self.server)
    }

    fn is_read_only(&self) -> bool {
        true
    }
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let server = serve(make_disk()?)?;
    let device = HttpDevice::connect(server)?;
    let requests = Arc::clone(&device.requests);

    let device = Device::custom(device);
    let filesystem = Builder::new().device(device).access(Access::ReadOnly).log(Log::Ignore).open()?;
    for entry in filesystem.root().read_dir("docs")? {
        let entry = entry?;
        println!("{} ({} bytes)", entry.file_name().display(), entry.metadata()?.len());
    }
    let content = filesystem.root().read("docs/2")?;
    assert_eq!(content, vec![2; 100_000]);
    println!("read one file of a disk of 1 GiB with {} requests", requests.load(Ordering::Relaxed));
    Ok(())
}

fn make_disk() -> Result<Arc<MemoryDevice>, butterfs::Error> {
    let disk = Arc::new(MemoryDevice::new(1 << 30));
    let device = Device::from(Arc::clone(&disk) as Arc<dyn BlockDevice>);
    Mkfs::new().device(device.clone()).run()?;
    let filesystem = Filesystem::open(device)?;
    filesystem.root().create_dir("docs")?;
    for number in 0..4 {
        filesystem.root().write(format!("docs/{number}"), vec![number; 100_000])?;
    }
    filesystem.close()?;
    Ok(disk)
}

/// One request; the length that the server names, and the body.
fn request(server: SocketAddr, method: &str, range: Option<(u64, u64)>) -> io::Result<(u64, Vec<u8>)> {
    let mut stream = TcpStream::connect(server)?;
    write!(stream, "{method} /disk.img HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\n")?;
    if let Some((from, to)) = range {
        write!(stream, "Range: bytes={from}-{}\r\n", to - 1)?;
    }
    stream.write_all(b"\r\n")?;
    let mut stream = BufReader::new(stream);
    let (mut line, mut len) = (String::new(), 0);
    while stream.read_line(&mut line)? > 2 {
        if let Some(value) = line.strip_prefix("Content-Length: ") {
            len = value.trim().parse().map_err(io::Error::other)?;
        }
        line.clear();
    }
    let mut body = Vec::new();
    if method == "GET" {
        stream.take(len).read_to_end(&mut body)?;
    }
    Ok((len, body))
}

/// A web server for one file, in a thread of its own.
fn serve(disk: Arc<MemoryDevice>) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that goes away is not the server's concern.
            let _ = answer(stream, &disk);
        }
    });
    Ok(address)
}

fn answer(mut stream: TcpStream, disk: &MemoryDevice) -> io::Result<()> {
    let (mut range, mut is_head) = ((0, disk.len()), false);
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    while let Some(line) = lines.next().transpose()?.filter(|line| !line.is_empty()) {
        is_head |= line.starts_with("HEAD");
        if let Some((from, to)) = line.strip_prefix("Range: bytes=").and_then(|range| range.split_once('-')) {
            range = (from.parse().map_err(io::Error::other)?, to.parse::<u64>().map_err(io::Error::other)? + 1);
        }
    }
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", range.1 - range.0)?;
    if is_head {
        return Ok(());
    }
    let mut bytes = vec![0; (range.1 - range.0) as usize];
    disk.read_at(range.0, &mut bytes)?;
    stream.write_all(&bytes)
}

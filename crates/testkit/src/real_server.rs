//! Servers of others that speak S3: moto from PyPI, and Ceph's gateway from Debian's packages.

use crate::requirement::skip;
use crate::scratch::{self, Scratch};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to answer at first.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A server with the empty bucket `bucket`, for any credentials. It is killed when it is dropped.
pub struct RealServer {
    /// Its URL.
    pub endpoint: String,
    process: Child,
}

impl RealServer {
    /// Starts moto. `None`, said: it is not installed.
    pub fn moto(test: &str) -> Option<RealServer> {
        let program = scratch::tools().join("moto/bin/moto_server");
        if !program.is_file() {
            skip(test, "moto is not installed");
            return None;
        }
        let port = free_port();
        let mut command = Command::new(program);
        command.args(["-H", "127.0.0.1", "-p", &port.to_string()]).stdin(Stdio::null());
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("moto starts");
        let server = RealServer { endpoint: format!("http://127.0.0.1:{port}"), process };
        let began = Instant::now();
        while !made_bucket(port) {
            assert!(began.elapsed() < START_LIMIT, "moto does not answer");
            std::thread::sleep(Duration::from_millis(200));
        }
        Some(server)
    }
}

impl Drop for RealServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A port that nobody listens at.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it is bound").port()
}

/// Whether a server that checks no signature answered, and has made the bucket.
fn made_bucket(port: u16) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream
            .write_all(b"PUT /bucket HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

const CEPH_NODE: &str = include_str!("ceph-node.sh");
/// The credentials of the user that Ceph's gateway knows.
pub const CEPH_CREDENTIALS: (&str, &str) = ("key", "secret");

/// One node of Ceph with its gateway in a scratch folder; with the empty bucket `bucket`.
pub struct Ceph {
    /// The URL of the gateway.
    pub endpoint: String,
    scratch: Scratch,
    port: u16,
}

impl Ceph {
    /// Starts it. `None`, said: it is not installed, or this is not root.
    pub fn start(test: &str) -> Option<Ceph> {
        if !crate::requirement::programs(test, &["ceph-mon", "ceph-osd", "radosgw", "radosgw-admin"]) {
            return None;
        }
        let port = free_port();
        let endpoint = format!("http://127.0.0.1:{port}");
        let ceph = Ceph { endpoint, scratch: Scratch::new(test), port };
        std::fs::write(ceph.scratch.join("node.sh"), CEPH_NODE).expect("scratch space");
        assert!(ceph.script(&[]), "Ceph does not start");
        Some(ceph)
    }

    fn script(&self, words: &[&str]) -> bool {
        let mut command = Command::new("bash");
        command.arg(self.scratch.join("node.sh")).arg(self.scratch.path()).arg(self.port.to_string()).args(words);
        let output = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        output.status().is_ok_and(|status| status.success())
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        self.script(&["stop"]);
    }
}

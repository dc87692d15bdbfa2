//! Sentences for the administrator from a process without a terminal, as syslog messages.
//!
//! The daemon that listens may come later than this process, or be restarted: a message that does not reach it is sent
//! once more over a new connection. Nobody waits for the daemon: where its queue is full, a message is lost.

use butterfs_fuse::Log;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The socket of syslog.
const SOCKET: &str = "/dev/log";
/// Facility daemon, severity warning.
const PRIORITY: u32 = 3 << 3 | 4;

/// A log that nobody hears where there is no syslog.
pub fn open() -> Log {
    let connection = Connection::to(Path::new(SOCKET));
    let process = std::process::id();
    Arc::new(move |sentence| connection.send(&format!("<{PRIORITY}>butterfs[{process}]: {sentence}")))
}

/// A connection that is made anew when the other side has gone.
struct Connection {
    path: PathBuf,
    socket: Mutex<Option<UnixDatagram>>,
}

impl Connection {
    fn to(path: &Path) -> Connection {
        let connection = Connection { path: path.to_owned(), socket: Mutex::new(None) };
        *connection.socket.lock().unwrap_or_else(PoisonError::into_inner) = connection.connect();
        connection
    }

    fn connect(&self) -> Option<UnixDatagram> {
        let socket = UnixDatagram::unbound().ok()?;
        socket.set_nonblocking(true).ok()?;
        socket.connect(&self.path).ok()?;
        Some(socket)
    }

    fn send(&self, line: &str) {
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let is_sent = |socket: &Option<UnixDatagram>| match socket.as_ref().map(|socket| socket.send(line.as_bytes())) {
            Some(Ok(_)) => true,
            Some(Err(error)) => error.kind() == std::io::ErrorKind::WouldBlock,
            None => false,
        };
        if !is_sent(&socket) {
            *socket = self.connect();
            is_sent(&socket);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 100];
        let len = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..len]).into_owned()
    }

    #[test]
    fn a_daemon_that_starts_late_or_again_is_found() {
        let folder = std::env::temp_dir().join(format!("butterfs-log-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("log");
        let connection = Connection::to(&path);
        connection.send("nobody hears this");
        for line in ["late", "again"] {
            let daemon = UnixDatagram::bind(&path).unwrap();
            connection.send(line);
            assert_eq!(received(&daemon), line);
            std::fs::remove_file(&path).unwrap();
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_daemon_that_does_not_read_stops_nobody() {
        let folder = std::env::temp_dir().join(format!("butterfs-log-full-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let daemon = UnixDatagram::bind(folder.join("log")).unwrap();
        let connection = Connection::to(&folder.join("log"));
        (0..2000).for_each(|_| connection.send("line"));
        assert_eq!(received(&daemon), "line");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

//! Clients and servers of this version and of others, over real sockets.

use super::*;
use butterfs_control::{
    Attached, InodeRef, Label, MOST_DESCRIPTORS, Reply, Request, Response, SendStatus, SendSummary, SubvolumeId,
    VERSION, question,
};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};

/// A device number that no mount has, different in each test.
fn device(minor: u32) -> (u32, u32) {
    (std::process::id(), minor)
}

/// Answers with the user and how many descriptors came, after the label.
fn answer(asked: Asked<'_, Question>, sink: Sink<'_>) -> Result<(), Refusal> {
    match asked.question {
        Question::SyncAll(_) => Err(Refusal::new(7, "not today, %\n")),
        Question::SetLabel(question::SetLabel { label, .. }) => {
            sink(Label(label.clone()).into())?;
            sink(SubvolumeId(asked.peer.uid.into()).into())?;
            sink(SubvolumeId(asked.descriptors.len() as u64).into())
        }
        _ => sink(SubvolumeId(asked.descriptors.len() as u64).into()),
    }
}

fn powers(obey: fn(Order) -> Result<(), String>) -> Powers {
    let carry: Carry = Arc::new(|asked, descriptor, tell| {
        assert!(tell(SendStatus::Begun(9).into()));
        let StreamQuestion::SendSubvolumes(question) = asked.question else { panic!("{:?}", asked.question) };
        let text = format!("{question:?} {}", asked.descriptors.len());
        let written = std::fs::File::from(descriptor).write_all(text.as_bytes());
        let summary = SendSummary { bytes: text.len() as u64, commands: 1 };
        written.map(|()| summary.into()).map_err(|error| Refusal::new(5, error.to_string()))
    });
    // A pipe stands for a mount.
    let mounts: Mounts = Arc::new(|question| match question {
        MountQuestion::Join { options } => {
            (MountAnswer::Joined(options.clone()), Some(std::io::pipe().unwrap().0.into()))
        }
        question => (MountAnswer::Options(format!("{question:?}")), None),
    });
    Powers { obey: Arc::new(obey), respond: Arc::new(answer), carry, mounts, for_all: true, proxy: Proxy::Thread }
}

fn server(minor: u32, obey: fn(Order) -> Result<(), String>) -> (ControlServer, (u32, u32)) {
    (ControlServer::open(device(minor), powers(obey), Arc::new(|_| {})).unwrap(), device(minor))
}

fn client(device: (u32, u32)) -> ControlClient {
    ControlClient::find(device, rustix::process::geteuid().as_raw()).unwrap().unwrap()
}

fn send_question(clone_sources: usize) -> question::SendSubvolumes {
    question::SendSubvolumes {
        version: 1,
        contents: question::SentContents::Plain,
        streams: question::SentStreams::Separate,
        parent: None,
        clone_sources: vec![InodeRef::Descriptor(0); clone_sources],
        subvolumes: Vec::new(),
    }
}

fn set_label(label: Vec<u8>) -> question::SetLabel {
    question::SetLabel { through: InodeRef::Descriptor(0), label }
}

/// Sends bytes, and returns the line that is answered.
fn line(stream: &mut io::BufReader<UnixStream>, bytes: &[u8]) -> String {
    stream.get_mut().write_all(bytes).unwrap();
    let mut line = String::new();
    io::BufRead::read_line(stream, &mut line).unwrap();
    line
}

fn raw(device: (u32, u32)) -> io::BufReader<UnixStream> {
    let stream = address::connect(device, rustix::process::geteuid().as_raw()).unwrap().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    io::BufReader::new(stream)
}

#[test]
fn orders_are_carried_out_and_reasons_come_back() {
    let (_server, device) = server(1, |order| match order {
        Order::Sync => Ok(()),
        _ => Err("not\ntoday".into()),
    });
    let mut client = client(device);
    assert_eq!(client.order(Order::Sync).unwrap(), Ok(()));
    assert_eq!(client.order(Order::MakeWritable).unwrap(), Err("not today".into()));
    assert_eq!(line(&mut raw(device), b"nonsense\n"), "failed unknown order\n");
}

#[test]
fn the_end_reaches_those_who_wait() {
    let (server, device) = server(2, |_| Ok(()));
    let mut asker = client(device);
    let mut waiter = client(device).wait().unwrap().unwrap();
    assert!(!asker.is_ending().unwrap());
    assert_eq!(waiter.end_within(Duration::from_millis(1)).unwrap(), None);
    server.ending();
    assert!(asker.is_ending().unwrap());
    server.end(Err("disk on fire".into()));
    // This process has the server, and does not end.
    waiter.forget_process();
    assert_eq!(waiter.end_within(Duration::from_secs(5)).unwrap(), Some(Err("disk on fire".into())));
}

#[test]
fn questions_are_answered_with_records() {
    let (_server, device) = server(4, |_| Ok(()));
    let mut client = client(device);
    let root = std::fs::File::open("/").unwrap();
    for count in [0, 1, MOST_DESCRIPTORS] {
        let answer = client.ask(question::FindSubvolumePath { id: 7 }, &[]);
        assert!(answer.is_err(), "another type of record is an error");
        client = self::client(device);
        let answer = client.ask(question::GetDefault {}, &vec![root.as_fd(); count]).unwrap();
        assert_eq!(answer, Ok(vec![SubvolumeId(count as u64)]));
    }
    assert!(client.ask(question::GetDefault {}, &vec![root.as_fd(); MOST_DESCRIPTORS + 1]).is_err());
    let refusal = Refusal::new(7, "not today, %\n");
    assert_eq!(client.ask(question::SyncAll {}, &[]).unwrap(), Err(refusal));
    assert_eq!(client.order(Order::Sync).unwrap(), Ok(()));
}

#[test]
fn a_long_question_comes_whole_and_a_longer_one_not_at_all() {
    let (_server, device) = server(9, |_| Ok(()));
    let mut client = client(device);
    for len in [0, 100, 4000] {
        let label: Vec<u8> = (0..len).map(|number| number as u8).collect();
        let question = butterfs_control::encode(&Question::from(set_label(label.clone()))).unwrap();
        client.send(Request::Question(Attached { descriptors: 0, bytes: question.len() }), &question, &[]).unwrap();
        let me = rustix::process::geteuid().as_raw().into();
        for record in [Label(label).into(), SubvolumeId(me).into(), SubvolumeId(0).into()] {
            assert_eq!(client.reply().unwrap(), Reply::Record(record));
        }
        assert_eq!(client.reply().unwrap(), Reply::Done);
    }
    let error = client.ask(set_label(vec![0; 4096]), &[]).unwrap_err();
    assert!(error.to_string().contains("too long"), "{error}");
    assert_eq!(client.order(Order::Sync).unwrap(), Ok(()));
}

#[test]
fn a_stream_comes_with_a_question() {
    let (_server, device) = server(5, |_| Ok(()));
    let mut client = client(device);
    for sources in [0, 3, 1000] {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut reports = Vec::new();
        let mut report = |news| reports.push(news);
        let answer = client.ask_stream(send_question(sources), writer.as_fd(), &[reader.as_fd()], &mut report);
        drop(writer);
        let written = io::read_to_string(reader).unwrap();
        assert_eq!(answer.unwrap(), Ok(SendSummary { bytes: written.len() as u64, commands: 1 }));
        assert_eq!(reports, [SendStatus::Begun(9)]);
        assert_eq!(written, format!("{:?} 1", send_question(sources)));
    }
    // Without a stream, and with more descriptors than came.
    let bytes = butterfs_control::encode(&StreamQuestion::from(send_question(0))).unwrap();
    for descriptors in [0, 2] {
        client.send(Request::StreamQuestion(Attached { descriptors, bytes: bytes.len() }), &bytes, &[]).unwrap();
        let reply = client.reply().unwrap();
        assert!(matches!(&reply, Reply::Refused(refusal) if refusal.errno == libc::EINVAL), "{reply:?}");
    }
    assert_eq!(client.order(Order::Sync).unwrap(), Ok(()));
}

/// Input after an invalid line is not executed.
#[test]
fn a_broken_question_ends_the_connection() {
    let (_server, device) = server(10, |_| Ok(()));
    for broken in ["ask", "ask 1 x", "carry 251 1", "ask 0 4097"] {
        let mut stream = raw(device);
        assert!(line(&mut stream, format!("hello 3\n{broken}\nsync\n").as_bytes()).starts_with("butterfs "));
        assert!(line(&mut stream, b"").starts_with("refused 22 "), "{broken}");
        assert_eq!(line(&mut stream, b""), "", "{broken}");
    }
}

#[test]
fn a_question_of_a_later_table_is_refused_by_a_sentence() {
    let (_server, device) = server(11, |_| Ok(()));
    let mut client = client(device);
    for (bytes, errno) in [(&[77, 1, 2, 3][..], libc::EOPNOTSUPP), (&[0, 9], libc::EINVAL), (&[], libc::EINVAL)] {
        client.send(Request::Question(Attached { descriptors: 0, bytes: bytes.len() }), bytes, &[]).unwrap();
        let reply = client.reply().unwrap();
        let Reply::Refused(refusal) = reply else { panic!("{reply:?}") };
        assert_eq!(refusal.errno, errno, "{refusal:?}");
        assert!(errno != libc::EOPNOTSUPP || refusal.sentence.contains("does not know this question"), "{refusal:?}");
    }
    assert_eq!(client.order(Order::Sync).unwrap(), Ok(()), "the connection stays");
}

#[test]
fn a_command_of_version_2_is_refused_by_a_sentence_and_its_orders_are_carried_out() {
    let (server, device) = server(6, |_| Ok(()));
    let mut old = raw(device);
    assert_eq!(line(&mut old, b"hello 2\n"), "butterfs 3\n");
    for question in ["do 0 get-label\n", "do 1 create @0 18 new\n", "with 1 send 1 % - 0 @0\n"] {
        let answer = line(&mut old, question.as_bytes());
        assert!(answer.starts_with("refused 71 ") && answer.contains("version%202"), "{question}{answer}");
    }
    assert_eq!(line(&mut old, b"sync\n"), "ok\n");
    assert_eq!(line(&mut old, b"state\n"), "serving\n");
    assert_eq!(line(&mut old, b"wait\n"), "waiting\n");
    server.end(Ok(()));
    assert_eq!(line(&mut old, b""), "ok\n");
    // So is one of a later version, whose question has the same frame.
    let mut later = raw(device);
    assert_eq!(line(&mut later, b"hello 4\n"), "butterfs 3\n");
    assert!(line(&mut later, b"ask 0 5\nwait\n").starts_with("refused 71 "));
    assert_eq!(line(&mut later, b"sync\n"), "ok\n");
}

/// A server of version 2, as it answers one connection.
fn old_server(device: (u32, u32)) -> (address::Bound, std::thread::JoinHandle<Vec<String>>) {
    let mut listener = None;
    let keep = |fresh: UnixListener| {
        listener = Some(fresh);
        Ok(())
    };
    let bound = address::Bound::bind(device, address::Whom::OwnersAlone, false, keep).unwrap();
    let serve = move || {
        let mut stream = io::BufReader::new(listener.unwrap().accept().unwrap().0);
        let mut heard = Vec::new();
        loop {
            let said = line(&mut stream, b"").trim_end().to_owned();
            let answer: &[u8] = match said.as_str() {
                "" => return heard,
                "state" => b"serving\n",
                "sync" | "readonly" | "writable" => b"ok\n",
                "wait" => b"waiting\nfailed disk on fire\n",
                _ if said.starts_with("hello ") => b"butterfs 2\n",
                _ => b"failed unknown order\n",
            };
            stream.get_mut().write_all(answer).unwrap();
            heard.push(said);
        }
    };
    (bound, std::thread::spawn(serve))
}

#[test]
fn a_server_of_version_2_obeys_and_is_asked_nothing() {
    let device = device(12);
    let (_bound, server) = old_server(device);
    let mut client = client(device);
    let error = client.ask(question::GetLabel {}, &[]).unwrap_err();
    assert!(error.to_string().contains("version 2"), "{error}");
    let (_reader, writer) = std::io::pipe().unwrap();
    assert!(client.ask_stream(send_question(0), writer.as_fd(), &[], &mut |_| ()).is_err());
    assert!(!client.is_ending().unwrap());
    for order in [Order::Sync, Order::MakeReadOnly, Order::MakeWritable] {
        assert_eq!(client.order(order).unwrap(), Ok(()));
    }
    let mut waiter = client.wait().unwrap().unwrap();
    waiter.forget_process();
    assert_eq!(waiter.end_within(Duration::from_secs(5)).unwrap(), Some(Err("disk on fire".into())));
    drop(waiter);
    let heard = server.join().unwrap();
    assert_eq!(heard, ["hello 3", "state", "sync", "readonly", "writable", "wait"]);
}

#[test]
fn another_version_is_refused_by_a_sentence() {
    let (_server, device) = server(13, |_| Ok(()));
    let mut client = client(device);
    client.pretend_version(VERSION + 1);
    let error = client.ask(question::ListSubvolumes {}, &[]).unwrap_err();
    assert!(error.to_string().contains("version"), "{error}");
    assert_eq!(client.request(Request::Hello(VERSION + 1)).unwrap(), Response::Version(VERSION));
    assert_eq!(client.order(Order::Sync).unwrap(), Ok(()));
}

#[test]
fn an_answer_ends_when_nobody_reads_it() {
    static ENDED: AtomicBool = AtomicBool::new(false);
    let respond: Respond = Arc::new(|_, sink| {
        while sink(Label(vec![b'x'; 1000]).into()).is_ok() {}
        ENDED.store(true, Ordering::SeqCst);
        Ok(())
    });
    let powers = Powers { respond, ..powers(|_| Ok(())) };
    let _server = ControlServer::open(device(7), powers, Arc::new(|_| {})).unwrap();
    let mut client = client(device(7));
    let none: [BorrowedFd<'_>; 0] = [];
    let mut count = 0;
    let ended = client.ask_each(question::GetLabel {}, &none, &mut |_| {
        count += 1;
        Err(io::Error::other("enough"))
    });
    assert!(ended.is_err() && count == 1);
    drop(client);
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while !ENDED.load(Ordering::SeqCst) {
        assert!(std::time::Instant::now() < end, "the answer goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_dead_server_s_socket_is_replaced_and_a_living_one_s_stays() {
    let path = |device| address::path_of(device).unwrap();
    let (first, at) = server(8, |_| Ok(()));
    drop(first);
    assert!(!path(at).exists(), "it goes with its server");
    let stale = UnixListener::bind(path(at)).unwrap();
    drop(stale);
    assert!(UnixStream::connect(path(at)).is_err());
    assert!(ControlClient::find(at, rustix::process::geteuid().as_raw()).unwrap().is_none());
    let (second, _) = server(8, |_| Ok(()));
    let mut early = client(at);
    let (third, _) = server(8, |_| Err("the third".into()));
    drop(second);
    assert_eq!(client(at).order(Order::Sync).unwrap(), Err("the third".into()));
    assert_eq!(early.order(Order::Sync).unwrap(), Ok(()), "who is connected stays so");
    drop(third);
    assert!(!path(at).exists());
}

#[test]
fn nobody_there_is_no_error() {
    assert!(ControlClient::find(device(3), 0).unwrap().is_none());
}

#[test]
fn a_mount_comes_with_its_descriptor_and_the_connection_goes_on() {
    let (_server, device) = server(91, |_| Ok(()));
    let mut client = client(device);
    for _ in 0..3 {
        let (answer, none) = client.ask_about_mounts(MountQuestion::Locate).unwrap();
        assert_eq!((answer, none.is_none()), (MountAnswer::Options("Locate".into()), true));
        let options = vec!["ro".to_owned(); 200];
        let (answer, mount) = client.ask_about_mounts(MountQuestion::Join { options: options.clone() }).unwrap();
        assert_eq!(answer, MountAnswer::Joined(options));
        assert!(super::descriptors::is_pipe(mount.expect("it came along")));
        assert_eq!(client.order(Order::Sync).unwrap(), Ok(()));
    }
}

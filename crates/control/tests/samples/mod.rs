//! Messages of every variant, with values at the ends of their ranges.

#![allow(dead_code)] // not every test uses all of them

use butterfs_control::question::*;
use butterfs_control::*;

const ONE: InodeRef = InodeRef::Descriptor(0);
const LAST: InodeRef = InodeRef::Descriptor(249);
const NUMBER: InodeRef = InodeRef::Number { tree: 5, ino: u64::MAX };

pub fn questions() -> Vec<Question> {
    let (name, id) = (b"a \xff\n%".to_vec(), u64::MAX - 255);
    let compress = Some(CompressionMethod { algorithm: Compression::Zstd, level: -15 });
    let defragment = Defragment { file: ONE, start: 1, len: MOST_DEFRAGMENTED, threshold: 0, compress };
    let counters = vec![0, u64::MAX];
    let earlier = ScrubEarlier { id: 1, started: -1, duration_secs: 2, is_finished: true, counters };
    vec![
        CreateSubvolume { directory: ONE, umask: 0o22, name: name.clone() }.into(),
        CreateSubvolume { directory: NUMBER, umask: 0o777, name: Vec::new() }.into(),
        Snapshot { source: ONE, directory: LAST, name: name.clone(), read_only: true }.into(),
        Snapshot { source: LAST, directory: ONE, name: name.clone(), read_only: false }.into(),
        DeleteSubvolume { directory: ONE, name: name.clone() }.into(),
        DeleteSubvolumeById { through: ONE, id }.into(),
        ListSubvolumes {}.into(),
        ListDeleted {}.into(),
        DescribeSubvolume { subvolume: ONE }.into(),
        DescribeSubvolumeById { id }.into(),
        DescribeSubvolumeByUuid { uuid: [0xab; 16] }.into(),
        ListSnapshots { of: id }.into(),
        FindSubvolume { inode: NUMBER }.into(),
        GetDefault {}.into(),
        SetDefault { through: ONE, id: 0 }.into(),
        GetReadOnly { subvolume: ONE }.into(),
        SetReadOnly { subvolume: ONE, read_only: true }.into(),
        FindNew { subvolume: ONE, since: 300 }.into(),
        FindSubvolumePath { id }.into(),
        FindPaths { within: ONE, ino: 257 }.into(),
        FindPathsById { subvolume: 256, ino: 257 }.into(),
        FindUsers { address: 1 << 40, scope: UserScope::Address }.into(),
        FindUsers { address: 1 << 40, scope: UserScope::WholeExtent }.into(),
        ListExtents { file: ONE }.into(),
        AskToShare { source: ONE, into: LAST }.into(),
        Dedupe { source: ONE, source_start: 0, into: LAST, into_start: 4096, len: MOST_DEDUPED }.into(),
        Defragment { compress: None, ..defragment.clone() }.into(),
        defragment.into(),
        GetLabel {}.into(),
        SetLabel { through: ONE, label: name }.into(),
        StoreData { options: vec!["compress=zstd:3".into(), String::new()] }.into(),
        CountDeviceErrors {}.into(),
        SyncAll {}.into(),
        CountWork {}.into(),
        scrub(StartScrub { earlier: vec![earlier, ScrubEarlier::default()], ..start_scrub() }),
        scrub(StartScrub { limit: Some(1 << 40), only: vec![LAST, NUMBER], ..start_scrub() }),
        scrub(StartScrub { ranges: vec![(0, u64::MAX)], devices: vec![1, u64::MAX], ..start_scrub() }),
        GetScrub {}.into(),
        CancelScrub { through: ONE }.into(),
        LimitScrub { through: ONE, device: None, bytes_per_sec: 0 }.into(),
        LimitScrub { through: ONE, device: Some(2), bytes_per_sec: 50 << 20 }.into(),
        ResetDeviceErrors { through: ONE, device: None }.into(),
        ResetDeviceErrors { through: LAST, device: Some(1) }.into(),
        GetHealth {}.into(),
        ListDevices {}.into(),
        ResizeDevice { through: ONE, id: 1, size: SizeChange::Bytes(1 << 40), with_file: true }.into(),
        ResizeDevice { through: ONE, id, size: SizeChange::More(1), with_file: false }.into(),
        ResizeDevice { through: ONE, id: 1, size: SizeChange::Less(1), with_file: false }.into(),
        ResizeDevice { through: ONE, id: 1, size: SizeChange::Max, with_file: false }.into(),
        AddDevice { through: ONE, path: b"/dev/\xff".to_vec(), force: true, discard: false }.into(),
        RemoveDevice { through: ONE, device: DeviceName::Id(2) }.into(),
        RemoveDevice { through: ONE, device: DeviceName::Path(b"/dev/loop1".to_vec()) }.into(),
        RemoveDevice { through: ONE, device: DeviceName::Missing }.into(),
        CancelDeviceWork { through: ONE, work: DeviceWork::Resize }.into(),
        CancelDeviceWork { through: ONE, work: DeviceWork::Remove }.into(),
        CancelDeviceWork { through: ONE, work: DeviceWork::Replace }.into(),
        StartReplace {
            through: ONE,
            source: DeviceName::Id(1),
            target: b"/dev/loop2".to_vec(),
            avoid_source: true,
            force: false,
            discard: true,
        }
        .into(),
        DescribeReplace {}.into(),
        DescribeFilesystem {}.into(),
        ListChunks {}.into(),
        ListMembers {}.into(),
        MeasureFile { file: ONE }.into(),
        StartBalance { through: ONE, control: vec![7; 3] }.into(),
        ResumeBalance { through: ONE }.into(),
        StopBalance { through: ONE, how: BalanceStop::Pause }.into(),
        StopBalance { through: ONE, how: BalanceStop::Cancel }.into(),
        GetBalance {}.into(),
    ]
}

fn scrub(question: StartScrub) -> Question {
    question.into()
}

fn start_scrub() -> StartScrub {
    StartScrub {
        through: ONE,
        read_only: true,
        devices: Vec::new(),
        priority_class: 3,
        priority_level: 7,
        limit: None,
        only: Vec::new(),
        ranges: Vec::new(),
        earlier: Vec::new(),
    }
}

fn scrub_device() -> ScrubDevice {
    ScrubDevice {
        id: 1,
        name: "/dev/\u{e9}".into(),
        total_bytes: 1 << 50,
        counters: vec![("csum_errors".into(), 3)],
        started: 1_700_000_000,
        resumed: -1,
        duration_secs: 5,
        limit: 1 << 20,
        end: ScrubEnd::Failed("it burns".into()),
    }
}

fn scrub_records() -> Vec<Record> {
    let ends = [ScrubEnd::Running, ScrubEnd::Finished, ScrubEnd::Cancelled];
    let devices = ends.map(|end| ScrubDevice { end, ..scrub_device() }).to_vec();
    let state = ScrubState { fsid: [7; 16], is_running: true, read_only: false, findings: 1, omitted: 2, devices };
    let file = DamagedFile { tree: 256, ino: 257, offset: 4096, len: 8192, path: b"a/\xff".to_vec() };
    let finding = ScrubFinding {
        device: 2,
        device_name: "disk".into(),
        physical: 1 << 30,
        logical: Some(1 << 31),
        len: 4096,
        content: "data".into(),
        cause: "checksum error".into(),
        outcome: ScrubOutcome::Repaired,
        outcome_text: "repaired".into(),
        files: vec![file],
        trees: vec![5],
        is_cut: true,
    };
    let outcomes = [ScrubOutcome::Repairable, ScrubOutcome::Lost, ScrubOutcome::Noticed];
    let others = outcomes.map(|outcome| ScrubFinding { outcome, logical: None, files: Vec::new(), ..finding.clone() });
    let errors = DeviceRecord { id: 1, ..DeviceRecord::default() };
    let device = |state| DeviceHealth { errors: errors.clone(), state, condition: "whole".into() };
    let health = HealthRecord {
        fsid: [7; 16],
        label: b"\xff".to_vec(),
        state: Health::Faulted,
        meaning: vec!["a".into()],
        action: vec!["b".into()],
        devices: [Health::Online, Health::Degraded].map(device).to_vec(),
        missing: 1,
        stopped: Some("c".into()),
        scrub: Some(state.clone()),
    };
    let findings = std::iter::once(finding).chain(others).map(|finding| ScrubNews::Finding(finding).into());
    let first = [ScrubNews::State(state.clone()).into(), state.into(), health.into(), HealthRecord::default().into()];
    first.into_iter().chain(findings).collect()
}

pub fn mount_questions() -> Vec<MountQuestion> {
    let join = MountQuestion::Join { options: vec!["subvol=/a".into(), String::new()] };
    vec![MountQuestion::Locate, join, MountQuestion::ShowOptions]
}

pub fn mount_answers() -> Vec<MountAnswer> {
    let file = Storage { device: 7, inode: Some(u64::MAX), start: 0 };
    let located = vec![file, Storage { device: u64::MAX, inode: None, start: 1 << 20 }];
    vec![
        MountAnswer::Located(located),
        MountAnswer::Joined(vec!["compress=zstd".into()]),
        MountAnswer::Options("rw,\u{e9}".into()),
        MountAnswer::Refused(Refusal::new(95, "no")),
    ]
}

pub fn stream_questions() -> Vec<StreamQuestion> {
    let (streams, subvolumes) = (SentStreams::Separate, vec![LAST, NUMBER]);
    let send = SendSubvolumes {
        version: 3,
        contents: SentContents::Compressed,
        streams,
        parent: Some(ONE),
        clone_sources: vec![ONE; 3],
        subvolumes,
    };
    let receive = ReceiveSubvolumes {
        directory: ONE,
        streams: ReceivedStreams::First,
        encoded: EncodedData::Decompress,
        max_errors: u64::MAX,
        verbosity: -1,
    };
    let (contents, joined) = (SentContents::Omitted, SentStreams::Joined);
    let (streams, encoded) = (ReceivedStreams::All, EncodedData::Keep);
    vec![
        SendSubvolumes { contents: SentContents::Plain, ..send.clone() }.into(),
        SendSubvolumes { contents, streams: joined, parent: None, clone_sources: Vec::new(), ..send.clone() }.into(),
        send.into(),
        ReceiveSubvolumes { streams, encoded, max_errors: 0, verbosity: 2, ..receive.clone() }.into(),
        receive.into(),
    ]
}

/// One of each type; and each variant of those that have some.
pub fn records() -> Vec<Record> {
    let stamp = |transid, seconds| Stamp { transid, seconds };
    let subvolume = SubvolumeRecord {
        id: 300,
        parent: 5,
        directory: 256,
        directory_path: b"d/\xff".to_vec(),
        name: b"n \xff".to_vec(),
        generation: u64::MAX,
        flags: 1,
        uuid: [0xab; 16],
        parent_uuid: [1; 16],
        received_uuid: [0xff; 16],
        changed: stamp(1, -1),
        created: stamp(2, i64::MIN),
        sent: stamp(3, i64::MAX),
        received: stamp(4, 1_700_000_000),
    };
    let new = NewExtent {
        ino: 257,
        start: 4096,
        len: 8192,
        address: 1 << 40,
        offset: 1,
        generation: 9,
        kind: ExtentKind::Inline,
        compressed: true,
        path: b"a/b".to_vec(),
    };
    let extent = FileExtentRecord {
        start: 1,
        len: 2,
        address: 3,
        disk_len: 4,
        ram_bytes: 5,
        offset: 6,
        generation: u64::MAX,
        kind: ExtentKind::Data,
        compression: Some(Compression::Zlib),
        shared: true,
    };
    let device = DeviceRecord { id: 1, name: "/dev/\u{e9}".into(), write_errors: 1, ..DeviceRecord::default() };
    let counts = WorkCounts { nodes: 1, items: 2, reads: 3, longest_stop_steps: 4, longest_stop_reads: 5 };
    let size = DeviceSize { id: 1, name: Some("/dev/loop1".into()), total_bytes: 1 << 40, used_bytes: 1 << 30 };
    vec![
        SubvolumeId(300).into(),
        subvolume.into(),
        DeletedSubvolume { id: 256, generation: 7 }.into(),
        ReadOnly(true).into(),
        ReadOnly(false).into(),
        NewSince::UpTo(9).into(),
        NewSince::Extent(new).into(),
        InodePath(b"a/\xff".to_vec()).into(),
        InodePath(Vec::new()).into(),
        ExtentUser { subvolume: 5, ino: 257, offset: 4096 }.into(),
        extent.into(),
        FileExtentRecord { kind: ExtentKind::Hole, compression: None, ..extent }.into(),
        FileExtentRecord { kind: ExtentKind::Preallocated, compression: Some(Compression::Lzo), ..extent }.into(),
        MayShare(true).into(),
        Comparison::Same.into(),
        Comparison::Differs.into(),
        Rewritten(1 << 30).into(),
        Label(b"\xff".to_vec()).into(),
        device.into(),
        counts.into(),
        SendSummary { bytes: 1 << 40, commands: 7 }.into(),
        ReceiveSummary { streams: 1, sections: 2, commands: 3, bytes: 4, errors: 5 }.into(),
        DeviceSize { name: None, ..size.clone() }.into(),
        size.into(),
        WorkProgress { done_bytes: 1, total_bytes: 2 }.into(),
        ReplaceRecord { state: 1, permille: 999, started: 1 << 40, stopped: -1, write_errors: 2, read_errors: 3 }
            .into(),
        FilesystemRecord {
            uuid: [0xcd; 16],
            label: b"\xff".to_vec(),
            generation: u64::MAX,
            bytes_used: 1,
            sectorsize: 4096,
            nodesize: 65536,
            available: 2,
            global_reserve: 3,
            devices: 4,
            device_bytes: 5,
            missing_bytes: 6,
            slack_bytes: 7,
            spaces: vec![SpaceRecord { flags: 0x15, total: 1, used: 2, raw: 3 }],
            discard: "discard=async".into(),
        }
        .into(),
        FilesystemRecord::default().into(),
        ChunkRecord { start: 1, length: 2, used: 3, flags: 4, stripe_length: 5, stripes: vec![(1, u64::MAX)] }.into(),
        MemberRecord { id: 1, uuid: [2; 16], storage: Some(("/dev/\u{e9}".into(), 3)), total_bytes: 4, allocated: 5 }
            .into(),
        MemberRecord { id: 2, ..MemberRecord::default() }.into(),
        MeasuredExtent { address: 1 << 40, len: 4096, shared: true }.into(),
        BalanceRecord {
            phase: BalancePhase::Running,
            control: vec![7; 3],
            expected: 9,
            considered: 4,
            completed: 2,
            no_space: 1,
        }
        .into(),
    ]
}

fn reports() -> Vec<Report> {
    vec![
        SendStatus::Begun(3).into(),
        SendStatus::Progress { bytes: 1, commands: 2, permille: 1000 }.into(),
        ReceiveStatus::Waiting.into(),
        ReceiveStatus::Out("a b".into()).into(),
        ReceiveStatus::Err("%\n".into()).into(),
        ReceiveStatus::Error(String::new()).into(),
        ReceiveStatus::Progress { bytes: 7, commands: 8 }.into(),
    ]
}

pub fn replies() -> Vec<Reply> {
    let records = records().into_iter().chain(scrub_records());
    let (records, reports) = (records.map(Reply::Record), reports().into_iter().map(Reply::Report));
    let ends =
        [Reply::Done, Reply::Refused(Refusal::new(-1, "not today, %\n")), Reply::Refused(Refusal::new(i32::MAX, ""))];
    records.chain(reports).chain(ends).collect()
}

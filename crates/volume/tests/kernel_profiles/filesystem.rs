//! A filesystem on loop devices, made and mounted by the real tools, taken apart at the end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::Duration;

/// Between two attempts at something that is busy.
const PAUSE: Duration = Duration::from_millis(100);

/// A run of a file: bytes of the file, and where they are in the logical space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    pub file_offset: usize,
    pub logical: u64,
    pub len: usize,
}

impl Extent {
    pub fn end(&self) -> u64 {
        self.logical + self.len as u64
    }
}

/// A directory with the images, their loop devices, and a place to mount them.
pub struct Filesystem {
    dir: PathBuf,
    images: Vec<PathBuf>,
    loops: Vec<Option<String>>,
    is_mounted: bool,
}

/// The requirement that is missing here, if any.
pub fn requirements() -> Result<(), String> {
    let id = Command::new("id").arg("-u").output().map_err(|error| error.to_string())?;
    if id.stdout != b"0\n" {
        return Err("loop devices and mounts need root".to_owned());
    }
    for tool in ["mkfs.btrfs", "btrfs", "losetup", "filefrag", "chattr"] {
        let found = Command::new("which").arg(tool).output().is_ok_and(|output| output.status.success());
        if !found {
            return Err(format!("{tool} is not installed"));
        }
    }
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let known = known.contains("btrfs") || try_run("modprobe", &["btrfs"]).is_ok();
    if known { Ok(()) } else { Err("the kernel has no btrfs".to_owned()) }
}

fn try_run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("timeout").arg("120").arg(program).args(arguments).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr)))
}

fn run(program: &str, arguments: &[&str]) -> String {
    try_run(program, arguments).unwrap_or_else(|error| panic!("{error}"))
}

/// Bytes that differ from place to place and from seed to seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    butterfs_testkit::rng::Rng::new(seed).fill(&mut bytes);
    bytes
}

impl Filesystem {
    /// A new filesystem with this profile for data and metadata.
    pub fn make(profile: &str, devices: usize, device_len: u64) -> Filesystem {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("butterfs-volume-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(name);
        fs::create_dir_all(dir.join("mnt")).unwrap();
        let images: Vec<PathBuf> = (1..=devices).map(|id| dir.join(format!("disk{id}"))).collect();
        let mut made = Filesystem { dir, images, loops: vec![None; devices], is_mounted: false };
        for image in &made.images {
            fs::File::create(image).unwrap().set_len(device_len).unwrap();
        }
        made.attach(&[]);
        let nodes = made.nodes();
        let options = ["-q", "-f", "-d", profile, "-m", profile];
        run("mkfs.btrfs", &[&options[..], &nodes].concat());
        made
    }

    /// The image files.
    pub fn images(&self) -> impl Iterator<Item = &Path> {
        self.images.iter().map(PathBuf::as_path)
    }

    fn nodes(&self) -> Vec<&str> {
        self.loops.iter().flatten().map(String::as_str).collect()
    }

    fn attach(&mut self, lost: &[usize]) {
        for (index, image) in self.images.iter().enumerate().filter(|(index, _)| !lost.contains(index)) {
            let node = run("losetup", &["--find", "--show", image.to_str().unwrap()]);
            self.loops[index] = Some(node.trim().to_owned());
        }
    }

    fn detach(&mut self) {
        for node in self.loops.iter_mut().filter_map(Option::take) {
            let _ = try_run("btrfs", &["device", "scan", "--forget", &node]);
            let _ = try_run("losetup", &["--detach", &node]);
        }
    }

    /// Mounts it without these devices, numbered from 0; without some it is read-only.
    pub fn mount(&mut self, lost: &[usize]) {
        self.detach();
        self.attach(lost);
        let nodes = self.nodes();
        let mut options: Vec<String> = nodes.iter().map(|node| format!("device={node}")).collect();
        if !lost.is_empty() {
            options.push("ro,degraded".to_owned());
        }
        let (options, at) = (options.join(","), self.dir.join("mnt"));
        run("mount", &["-t", "btrfs", "-o", &options, nodes[0], at.to_str().unwrap()]);
        self.is_mounted = true;
    }

    /// Unmounts it and gives the loop devices back.
    pub fn unmount(&mut self) {
        if self.is_mounted {
            // A child of another test, between fork and exec, may still hold a file of ours for a moment.
            let at = self.dir.join("mnt");
            let umount = || try_run("umount", &[at.to_str().unwrap()]).inspect_err(|_| sleep(PAUSE));
            (0..50).find_map(|_| umount().ok()).expect("it can be unmounted");
            self.is_mounted = false;
        }
        self.detach();
    }

    fn file(&self, name: &str) -> String {
        self.dir.join("mnt").join(name).to_str().unwrap().to_owned()
    }

    /// Writes a file; a plain one has no checksums and stays where it is.
    pub fn write_file(&self, name: &str, content: &[u8], is_plain: bool) {
        let path = self.file(name);
        fs::File::create(&path).unwrap();
        if is_plain {
            run("chattr", &["+C", &path]);
        }
        fs::write(&path, content).unwrap();
        run("sync", &[&path]);
    }

    pub fn read_file(&self, name: &str) -> Vec<u8> {
        fs::read(self.file(name)).unwrap()
    }

    /// Writes one file until nothing fits any more, then another one in small steps into what is left.
    pub fn fill(&self, names: [&str; 2]) {
        // Both now: later there is no room for a new file.
        names.iter().for_each(|name| drop(fs::File::create(self.file(name)).unwrap()));
        for (name, step) in names.into_iter().zip(["bs=1M", "bs=4k"]) {
            let path = self.file(name);
            let written = try_run("dd", &[&format!("of={path}"), "if=/dev/zero", step, "conv=fsync"]);
            assert!(written.is_err(), "it fills up");
            run("sync", &["-f", &path]);
        }
    }

    /// The runs of a file, in the logical space.
    pub fn extents(&self, name: &str) -> Vec<Extent> {
        let text = run("filefrag", &["-e", "-b4096", &self.file(name)]);
        text.lines().filter_map(parse_extent).collect()
    }

    /// `btrfs check` with all checksums.
    pub fn check(&mut self) {
        self.attach(&[]);
        let node = self.nodes()[0];
        run("btrfs", &["device", "scan", node]);
        run("btrfs", &["check", "--readonly", "--check-data-csum", node]);
        self.detach();
    }
}

/// A line like `  0:  0..  1279:  3408..  4687:  1280:  last,eof`, in blocks of 4096 bytes.
fn parse_extent(line: &str) -> Option<Extent> {
    let mut fields = line.split(':');
    fields.next()?.trim().parse::<u32>().ok()?;
    let first = |field: Option<&str>| field?.split("..").next()?.trim().parse::<u64>().ok();
    let (file_block, logical) = (first(fields.next())?, first(fields.next())?);
    let blocks = first(fields.next())?;
    Some(Extent { file_offset: file_block as usize * 4096, logical: logical * 4096, len: blocks as usize * 4096 })
}

impl Drop for Filesystem {
    fn drop(&mut self) {
        if self.is_mounted {
            let _ = try_run("umount", &[self.dir.join("mnt").to_str().unwrap()]);
        }
        self.detach();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

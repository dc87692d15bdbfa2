//! Makes a disk image and fills it, without root and without a mount.
//!
//! `cargo run -p butterfs --example make_image [IMAGE]`

use butterfs::{Builder, Compression, Device, Filesystem, Follow, Mkfs, Mode, Owner, SubvolumeId};
use std::error::Error;
use std::ffi::OsString;
use std::io::Write;

pub fn main() -> Result<(), Box<dyn Error>> {
    run(std::env::args_os().skip(1).collect())
}

pub fn run(arguments: Vec<OsString>) -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("butterfs-make-image-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let image = arguments.into_iter().next().map_or_else(|| folder.join("root.img"), Into::into);

    // The file is sparse: it takes the space of what is written to it.
    let made = Mkfs::new().device(Device::create(&image, 1 << 30)?).label("rootfs").run()?;
    println!("made {} on {}", made.uuid, image.display());

    let filesystem = Builder::new().device(&image).compression(Compression::zstd(3)).open()?;
    fill(&filesystem)?;
    let usage = filesystem.usage();
    println!("{} of {} bytes are used", usage.used, usage.total);
    // Errors of the last commit come from here; dropping the filesystem would lose them.
    filesystem.close()?;

    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

fn fill(filesystem: &Filesystem) -> Result<(), Box<dyn Error>> {
    let root = filesystem.root();
    // The usual layout: a subvolume that is mounted as /, so that it can be exchanged for a snapshot.
    let system: SubvolumeId = root.create_subvolume("@")?;
    filesystem.set_default_subvolume(system)?;

    let system = filesystem.subvolume_root(system)?;
    system.create_dir_all("etc/init.d")?;
    system.create_dir_all("usr/bin")?;
    system.create_dir_with("tmp", Mode::new(0o1777))?;
    system.write("etc/hostname", "example\n")?;
    system.symlink("usr/bin", "bin")?;

    let mut script = system.create_file("bin/hello")?; // follows the link, inside of the image
    writeln!(script, "#!/bin/sh\necho hello")?;
    script.as_node().set_mode(Mode::new(0o755))?;

    system.create_dir_all("home/ada")?;
    system.node("home/ada", Follow::Links)?.set_owner(Owner::new(1000, 1000))?;
    Ok(())
}

//! Disks in containers that `qemu-img` and `img2simg` make: the same bytes as in the raw image. Hostile ones end in a
//! sentence.

use butterfs_device::BlockDevice;
use butterfs_image::{Builder, FolderSource, Form, open_container};
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
}

fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are text")
}

/// An image of 16 MiB and a part of a cluster: noise, words, one byte again and again, holes.
fn disk(path: &Path) -> Vec<u8> {
    let mut bytes = vec![0; (16 << 20) + 4096];
    let mut rng = Rng::new(1);
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = match at >> 16 {
            0 => 0,
            1..=9 => rng.bits() as u8,
            20..=40 => b"all work and no play "[at % 21],
            50..=60 => 0xa5,
            127 if at % 8192 > 4096 => 7,
            256 => (at % 255) as u8,
            _ => 0,
        };
    }
    std::fs::write(path, &bytes).unwrap();
    bytes
}

/// The disk that a container shows, read in pieces that do not fit its blocks.
fn shown(path: &Path) -> Vec<u8> {
    let container = open_container(path).unwrap_or_else(|error| panic!("{error}")).expect("it is a container");
    assert!(container.write_at(0, &[0]).is_err() && container.is_read_only());
    assert!(container.read_at(container.len(), &mut [0]).is_err());
    let mut bytes = vec![0; container.len() as usize];
    for (index, part) in bytes.chunks_mut(300_001).enumerate() {
        container.read_at(index as u64 * 300_001, part).unwrap();
    }
    bytes
}

#[test]
fn containers_of_qemu_show_the_disk() {
    let test = "containers_of_qemu_show_the_disk";
    if !requirement::programs(test, &["qemu-img"]) {
        return;
    }
    let scratch = Scratch::new("image-containers");
    let (raw, out) = (scratch.join("disk.raw"), scratch.join("disk.out"));
    let bytes = disk(&raw);
    for (form, options, compressed) in [
        ("qcow2", "", false),
        ("qcow2", "compat=0.10", false),
        ("qcow2", "cluster_size=512", false),
        ("qcow2", "cluster_size=2M", true),
        ("qcow2", "extended_l2=on", false),
        ("qcow2", "", true),
        ("qcow2", "compression_type=zstd", true),
        ("vmdk", "", false),
        ("vmdk", "subformat=streamOptimized", false),
        ("vpc", "subformat=dynamic,force_size=on", false),
        ("vhdx", "", false),
        ("vhdx", "block_size=8M", false),
    ] {
        let mut arguments = vec!["convert", "-O", form];
        arguments.extend(compressed.then_some("-c"));
        arguments.extend((!options.is_empty()).then_some("-o"));
        arguments.extend((!options.is_empty()).then_some(options));
        run("qemu-img", &[&arguments[..], &[text(&raw), text(&out)]].concat());
        let found = shown(&out);
        assert!(found == bytes, "{form} {options} {compressed}: {} bytes", found.len());
        std::fs::remove_file(&out).unwrap();
    }
    // Zeros over data, subclusters, and a snapshot inside.
    for options in ["", "extended_l2=on"] {
        let options = format!("preallocation=off{}{options}", if options.is_empty() { "" } else { "," });
        run("qemu-img", &["convert", "-O", "qcow2", "-o", &options, text(&raw), text(&out)]);
        run("qemu-img", &["snapshot", "-c", "one", text(&out)]);
        run(
            "qemu-io",
            &["-c", "write -z 1M 700k", "-c", "write -P 9 2052096 4096", "-c", "discard 64k 1M", text(&out)],
        );
        run("qemu-img", &["convert", "-O", "raw", text(&out), text(&raw)]);
        assert!(shown(&out) == std::fs::read(&raw).unwrap(), "{options}");
        std::fs::remove_file(&out).unwrap();
    }
    // A fixed VHD is the disk with something behind it.
    run("qemu-img", &["convert", "-O", "vpc", "-o", "subformat=fixed,force_size=on", text(&raw), text(&out)]);
    assert!(open_container(&out).unwrap().is_none());
}

#[test]
fn sparse_images_of_android_show_the_disk() {
    if !requirement::programs("sparse_images_of_android_show_the_disk", &["img2simg"]) {
        return;
    }
    let scratch = Scratch::new("image-android");
    let (raw, out) = (scratch.join("disk.raw"), scratch.join("disk.simg"));
    let bytes = disk(&raw);
    run("img2simg", &[text(&raw), text(&out)]);
    assert!(std::fs::metadata(&out).unwrap().len() < bytes.len() as u64 / 2);
    assert!(shown(&out) == bytes);
}

#[test]
fn compressed_images_are_those_of_zstd_and_can_be_read_in_part() {
    let scratch = Scratch::new("image-zstd");
    let (folder, raw, out) = (scratch.folder("source"), scratch.join("disk.raw"), scratch.join("disk.raw.zst"));
    disk(&folder.join("file"));
    let builder = || Builder::new().source("/", FolderSource::new(&folder)).unwrap().epoch(1_700_000_000);
    builder().build(&raw).unwrap();
    builder().form(Form::Zstd(3)).threads(3).build(&out).unwrap();
    let bytes = std::fs::read(&raw).unwrap();
    assert!(std::fs::metadata(&out).unwrap().len() < bytes.len() as u64 / 4);
    assert!(shown(&out) == bytes);
    assert!(zstd::decode_all(std::fs::File::open(&out).unwrap()).unwrap() == bytes);
    let other = scratch.join("other.zst");
    builder().form(Form::Zstd(3)).threads(1).build(&other).unwrap();
    assert!(std::fs::read(&out).unwrap() == std::fs::read(&other).unwrap(), "whatever the number of threads");
    if requirement::programs("compressed_images", &["zstd"]) {
        run("zstd", &["-q", "-d", "-f", text(&out), "-o", text(&other)]);
        assert!(std::fs::read(&other).unwrap() == bytes);
    }
    // A stream of one frame has no table.
    std::fs::write(&other, zstd::encode_all(&bytes[..1 << 20], 1).unwrap()).unwrap();
    assert!(open_container(&other).unwrap_err().to_string().contains("no table of frames"));
}

#[test]
fn containers_that_need_other_files_are_refused() {
    let test = "containers_that_need_other_files_are_refused";
    if !requirement::programs(test, &["qemu-img"]) {
        return;
    }
    let scratch = Scratch::new("image-backing");
    let raw = scratch.join("base.raw");
    disk(&raw);
    let out = scratch.join("disk");
    let data_file = format!("data_file={}", text(&scratch.join("other")));
    for (arguments, part) in [
        (&["-f", "qcow2", "-F", "raw", "-b", text(&raw), text(&out)][..], "base.raw', and no file is read"),
        (&["-f", "qcow2", "-o", &data_file, text(&out), "1M"], "its data is in another file"),
        (&["-f", "vmdk", "-o", "subformat=monolithicFlat", text(&out), "1M"], "describes a disk in other files"),
    ] {
        run("qemu-img", &[&["create", "-q"], arguments].concat());
        let error = open_container(&out).unwrap_err().to_string();
        assert!(error.contains(part), "{arguments:?}: {error}");
        std::fs::remove_file(&out).unwrap();
    }
    run("qemu-img", &["create", "-q", "-f", "qcow2", text(&out), "1M"]);
    std::fs::File::options().write(true).open(&out).unwrap().write_all_at(&[2], 35).unwrap();
    assert!(open_container(&out).unwrap_err().to_string().contains("encrypted"));
    run("qemu-img", &["convert", "-O", "vmdk", text(&raw), text(&scratch.join("base.vmdk"))]);
    run("qemu-img", &["create", "-q", "-f", "vmdk", "-F", "vmdk", "-b", text(&scratch.join("base.vmdk")), text(&out)]);
    assert!(open_container(&out).unwrap_err().to_string().contains("the disk that it was made from"));
}

/// Bytes of heads and tables are changed; whatever is read then is an answer, and takes no time or memory to speak of.
#[test]
fn damaged_containers_end_in_a_sentence_or_bytes() {
    let test = "damaged_containers_end_in_a_sentence_or_bytes";
    if !requirement::programs(test, &["qemu-img", "img2simg"]) {
        return;
    }
    let scratch = Scratch::new("image-damaged-containers");
    let (raw, out) = (scratch.join("disk.raw"), scratch.join("disk"));
    let bytes = disk(&raw);
    std::fs::write(&raw, &bytes[..4 << 20]).unwrap();
    let rounds: u64 = std::env::var("BUTTERFS_CONTAINERS").map_or(25, |text| text.parse().unwrap());
    let mut refused = 0;
    for (index, (form, options)) in [
        ("qcow2", "cluster_size=4k"),
        ("qcow2", "compression_type=zstd"),
        ("qcow2", "extended_l2=on"),
        ("vmdk", "subformat=streamOptimized"),
        ("vmdk", "subformat=monolithicSparse"),
        ("vpc", "subformat=dynamic"),
        ("vhdx", "block_size=1M"),
        ("android", ""),
        ("zst", ""),
    ]
    .into_iter()
    .enumerate()
    {
        let _ = std::fs::remove_file(&out);
        match form {
            "android" => run("img2simg", &[text(&raw), text(&out)]),
            "zst" => {
                let folder = scratch.folder("source");
                std::fs::write(folder.join("file"), &bytes[..4 << 20]).unwrap();
                let builder = Builder::new().source("/", FolderSource::new(folder)).unwrap();
                builder.form(Form::Zstd(1)).build(&out).map(drop).unwrap();
            }
            _ => {
                let compressed = if options.contains("zstd") { &["-c"][..] } else { &[] };
                let arguments =
                    [&["convert"], compressed, &["-O", form, "-o", options, text(&raw), text(&out)]].concat();
                run("qemu-img", &arguments);
            }
        }
        let sound = std::fs::read(&out).unwrap();
        for round in 0..rounds {
            let mut damaged = sound.clone();
            let mut rng = Rng::new((round << 8) + index as u64);
            for _ in 0..=rng.below(4) {
                let from_end = rng.below(4) == 0;
                let range: usize = *rng.pick(&[128, 1024, 400 << 10, sound.len()]);
                let at = rng.index(range.min(sound.len()));
                let at = if from_end { sound.len() - 1 - at } else { at };
                let byte = rng.bits() as u8;
                damaged[at] = *rng.pick(&[0, 0xff, 0x80, 1, byte]);
            }
            if rng.below(8) == 0 {
                damaged.truncate(rng.index(sound.len()));
            }
            std::fs::write(&out, &damaged).unwrap();
            refused += u64::from(look(&out).is_err());
        }
    }
    assert!(refused > rounds / 2, "{refused} of {} are noticed", rounds * 9);
}

/// Headers that ask for absurd sizes, or point nowhere. Nothing is allocated for them.
#[test]
fn absurd_containers_are_refused() {
    let scratch = Scratch::new("image-absurd-containers");
    let path = scratch.join("disk");
    let refused = |bytes: Vec<u8>, part: &str| {
        std::fs::write(&path, bytes).unwrap();
        let error = look(&path).expect_err(part);
        assert!(error.contains(part), "{part}: {error}");
    };
    let patched = |len: usize, patches: &[(usize, &[u8])]| {
        let mut bytes = vec![0; len];
        patches.iter().for_each(|(at, patch)| bytes[*at..*at + patch.len()].copy_from_slice(patch));
        bytes
    };
    let qcow2 = |size: u64, bits: u8, entries: u32, table: u64| {
        let numbers = [size.to_be_bytes(), (1u64 << 63).to_be_bytes(), table.to_be_bytes()];
        let fields: [(usize, &[u8]); 6] = [
            (0, b"QFI\xfb\0\0\0\x02"),
            (23, &[bits]),
            (24, &numbers[0]),
            (36, &entries.to_be_bytes()),
            (40, &numbers[2]),
            (48, &numbers[1]),
        ];
        patched(4096, &fields)
    };
    refused(qcow2(1 << 63, 16, 8, 512), "the first table has 8 entries");
    refused(qcow2(1 << 63, 21, u32::MAX, u64::MAX), "is outside of");
    refused(qcow2(1 << 63, 21, u32::MAX, 1 << 60), "is outside of");
    refused(qcow2(1 << 20, 22, 1, 512), "2^22 bytes");
    refused(qcow2(1 << 20, 8, 1, 512), "2^8 bytes");
    let android = |block: u32, blocks: u32, chunks: u32, chunk: &[u8]| {
        let sizes = [28u16, 12].map(u16::to_le_bytes).concat();
        let numbers = [block, blocks, chunks].map(u32::to_le_bytes).concat();
        patched(4096, &[(0, &[0x3a, 0xff, 0x26, 0xed, 1, 0]), (8, &sizes), (12, &numbers), (28, chunk)])
    };
    let chunk = |kind: u16, blocks: u32, len: u32| {
        [&kind.to_le_bytes()[..], &[0, 0], &blocks.to_le_bytes(), &len.to_le_bytes()].concat()
    };
    let nothing = chunk(0xcac3, u32::MAX, 12);
    refused(android(4096, 1, u32::MAX, &[]), "4294967295 chunks");
    refused(android(u32::MAX - 3, u32::MAX, 2, &[nothing.clone(), nothing].concat()), "behind the end of the disk");
    refused(android(4096, 1, 1, &chunk(0xcac1, 1, 12)), "another length");
    refused(android(4096, 1, 1, &chunk(0xcac1, 1, 4)), "shorter than its header");
    refused(android(4096, 2, 1, &chunk(0xcac3, 1, 12)), "but the disk has 8192");
    refused(android(0, 0, 0, &[]), "impossible");
    let zstd = |frames: &[(u32, u32)], count: u32| {
        let mut bytes = vec![0x28, 0xb5, 0x2f, 0xfd];
        bytes.resize(frames.iter().map(|(stored, _)| *stored as usize).sum::<usize>().max(4), 0);
        bytes.extend(0x184d_2a5eu32.to_le_bytes());
        bytes.extend((frames.len() as u32 * 8 + 9).to_le_bytes());
        frames
            .iter()
            .for_each(|(stored, decoded)| bytes.extend([stored.to_le_bytes(), decoded.to_le_bytes()].concat()));
        bytes.extend([&count.to_le_bytes()[..], &[0], &0x8f92_eab1u32.to_le_bytes()].concat());
        bytes
    };
    refused(zstd(&[(100, 1 << 30)], 1), "at most 67108864 are possible");
    refused(zstd(&[(100, 1000)], u32::MAX), "4294967295 frames");
    refused(zstd(&[(100, 1000)], 2), "not where its size says");
    refused(zstd(&[(100, 1000)], 1), "cannot be decoded");
    let vmdk = |capacity: u64, grain: u64, entries: u32, directory: u64| {
        let numbers = [capacity, grain, directory].map(u64::to_le_bytes);
        let entries = entries.to_le_bytes();
        patched(4096, &[(0, b"KDMV\x01"), (12, &numbers[0]), (20, &numbers[1]), (44, &entries), (56, &numbers[2])])
    };
    refused(vmdk(u64::MAX, 128, 512, 1), "impossible");
    refused(vmdk(1 << 40, 1 << 40, 512, 1), "impossible");
    refused(vmdk(1 << 40, 128, 0, 1), "impossible");
    refused(vmdk(1 << 40, 128, 512, 1 << 50), "is outside of");
    refused(vmdk(1 << 40, 128, 512, u64::MAX), "no footer");
}

/// Reads a container here and there.
fn look(path: &Path) -> Result<(), String> {
    let Some(container) = open_container(path).map_err(|error| error.to_string())? else { return Ok(()) };
    let len = container.len();
    let mut buffer = vec![0; 64 << 10];
    for at in (0..8).map(|part| len / 8 * part).chain([len.saturating_sub(1 << 16)]) {
        let wanted = buffer.len().min((len - at) as usize);
        container.read_at(at, &mut buffer[..wanted]).map_err(|error| error.to_string())?;
    }
    Ok(())
}

//! Images of containers: what layers add, change and delete, as one tree and as snapshots.

use butterfs::{Access, Device, SubvolumeId};
use butterfs_image::{Builder, FilesystemSource, FolderSource, Layers, Manifest, OciSource};
use butterfs_testkit::kernel::{KernelMount, run_ok};
use butterfs_testkit::scratch::Scratch;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// A header and the content of an entry.
pub fn entry(path: &str, kind: u8, target: &str, content: &[u8]) -> Vec<u8> {
    let mut block = vec![0u8; 512];
    let mut put = |at: usize, text: &[u8]| block[at..at + text.len()].copy_from_slice(text);
    put(0, path.as_bytes());
    put(100, b"0000755\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{:011o}", content.len()).as_bytes());
    put(136, b"00000000001");
    put(148, b"        ");
    put(156, &[kind]);
    put(157, target.as_bytes());
    put(257, b"ustar\x0000");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    block.extend_from_slice(content);
    block.resize(block.len().next_multiple_of(512), 0);
    block
}

fn archive(entries: &[(&str, u8, &str)]) -> Vec<u8> {
    let mut out: Vec<u8> = entries
        .iter()
        .flat_map(|(path, kind, text)| match kind {
            b'0' => entry(path, b'0', "", text.as_bytes()),
            kind => entry(path, *kind, text, b""),
        })
        .collect();
    out.resize(out.len() + 1024, 0);
    out
}

/// Three layers with everything that layers can do.
fn layers() -> [Vec<u8>; 3] {
    [
        archive(&[
            ("./", b'5', ""),
            ("etc/", b'5', ""),
            ("etc/deleted", b'0', "base"),
            ("etc/changed", b'0', "base"),
            ("etc/linked", b'0', "shared"),
            ("etc/second", b'1', "etc/linked"),
            ("opaque/old/deep", b'0', "base"),
            ("opaque/kept", b'0', "base"),
            ("folder/file", b'0', "base"),
            ("file", b'0', "base"),
            ("again/old", b'0', "base"),
        ]),
        archive(&[
            ("etc/.wh.deleted", b'0', ""),
            ("etc/.wh.never-there", b'0', ""),
            ("etc/changed", b'0', "above"),
            // The marker stands behind what the layer itself has.
            ("opaque/kept", b'0', "above"),
            ("opaque/old/new", b'0', "above"),
            ("opaque/.wh..wh..opq", b'0', ""),
            // Folder and file change places.
            ("folder", b'0', "now a file"),
            ("file/", b'5', ""),
            ("file/inside", b'0', "above"),
            (".wh..wh.plnk", b'0', ""),
            // A link to a file of the layer below.
            ("third", b'1', "etc/linked"),
            (".wh.again", b'0', ""),
            ("again/new", b'0', "above"),
        ]),
        archive(&[("etc/linked", b'0', "no longer shared"), ("top", b'2', "etc/second")]),
    ]
}

/// Makes the tree that the layers show in the end.
fn expected(top: &Path) {
    let write = |path: &str, text: &str| {
        std::fs::create_dir_all(top.join(path).parent().unwrap()).unwrap();
        std::fs::write(top.join(path), text).unwrap();
    };
    write("etc/changed", "above");
    write("etc/linked", "no longer shared");
    write("etc/second", "shared");
    std::fs::hard_link(top.join("etc/second"), top.join("third")).unwrap();
    write("opaque/kept", "above");
    write("opaque/old/new", "above");
    write("folder", "now a file");
    write("file/inside", "above");
    write("again/new", "above");
    std::os::unix::fs::symlink("etc/second", top.join("top")).unwrap();
}

fn sum(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

/// An OCI layout with these layers.
pub fn layout(top: &Path, layers: &[Vec<u8>]) -> PathBuf {
    std::fs::create_dir_all(top.join("blobs/sha256")).unwrap();
    let blob = |bytes: &[u8], kind: &str| {
        let digest = sum(bytes);
        std::fs::write(top.join("blobs/sha256").join(&digest), bytes).unwrap();
        format!(r#"{{"mediaType":"{kind}","digest":"sha256:{digest}","size":{}}}"#, bytes.len())
    };
    let diffs: Vec<String> = layers.iter().map(|layer| format!(r#""sha256:{}""#, sum(layer))).collect();
    let config = format!(r#"{{"os":"linux","rootfs":{{"type":"layers","diff_ids":[{}]}}}}"#, diffs.join(","));
    let config = blob(config.as_bytes(), "application/vnd.oci.image.config.v1+json");
    let stored: Vec<String> = layers
        .iter()
        .enumerate()
        .map(|(number, layer)| match number {
            0 => blob(&gzipped(layer), "application/vnd.oci.image.layer.v1.tar+gzip"),
            1 => blob(&zstd::encode_all(layer.as_slice(), 3).unwrap(), "application/vnd.oci.image.layer.v1.tar+zstd"),
            _ => blob(layer, "application/vnd.oci.image.layer.v1.tar"),
        })
        .collect();
    let manifest = format!(r#"{{"schemaVersion":2,"config":{config},"layers":[{}]}}"#, stored.join(","));
    let manifest = blob(manifest.as_bytes(), "application/vnd.oci.image.manifest.v1+json");
    let index = format!(r#"{{"schemaVersion":2,"manifests":[{manifest}]}}"#);
    std::fs::write(top.join("index.json"), index).unwrap();
    std::fs::write(top.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    top.to_owned()
}

/// The lines of a manifest without what this machine's folders have of their own.
fn plain(manifest: &Manifest) -> Vec<String> {
    let unimportant = |word: &&str| !["mode=", "uid=", "gid=", "mtime="].iter().any(|key| word.starts_with(key));
    manifest.lines().map(|line| line.split(' ').filter(unimportant).collect::<Vec<_>>().join(" ")).collect()
}

fn shown(image: &Path, subvolume: Option<&str>) -> Manifest {
    let filesystem = butterfs::Builder::new().device(Device::path(image)).access(Access::ReadOnly).open().unwrap();
    let top = filesystem.subvolume_root(SubvolumeId::TOP_LEVEL).unwrap();
    let top = subvolume.map_or(top.clone(), |path| top.open_dir(path).unwrap());
    Manifest::of(&mut FilesystemSource::new("image", top)).unwrap()
}

/// Panics unless an inode's number means the same inode in all of these subvolumes: what has a name and its number in
/// two of them has the same content there.
fn assert_numbers_are_kept(image: &Path, subvolumes: &[String]) {
    fn read(folder: &butterfs::Dir, at: &str, into: &mut std::collections::BTreeMap<u64, (Vec<String>, Vec<u8>)>) {
        for found in folder.read_dir(".").unwrap() {
            let found = found.unwrap();
            let path = format!("{at}/{}", found.file_name().to_str().unwrap());
            let metadata = folder.symlink_metadata(found.file_name()).unwrap();
            let kind = format!("{:?}", metadata.file_type());
            let content = if metadata.is_file() { folder.read(found.file_name()).unwrap() } else { kind.into_bytes() };
            let entry = into.entry(metadata.id().number).or_insert((Vec::new(), content));
            entry.0.push(path.clone());
            if metadata.is_dir() {
                read(&folder.open_dir(found.file_name()).unwrap(), &path, into);
            }
        }
    }
    let filesystem = butterfs::Builder::new().device(Device::path(image)).access(Access::ReadOnly).open().unwrap();
    let top = filesystem.subvolume_root(SubvolumeId::TOP_LEVEL).unwrap();
    let mut all = Vec::new();
    for subvolume in subvolumes {
        let mut inodes = Default::default();
        read(&top.open_dir(subvolume).unwrap(), "", &mut inodes);
        all.push(inodes);
    }
    for pair in all.windows(2) {
        let both: Vec<u64> = pair[0].keys().filter(|number| pair[1].contains_key(number)).copied().collect();
        assert!(both.len() > 3, "{pair:?}");
        both.iter().for_each(|number| assert_eq!(pair[0][number].1, pair[1][number].1, "inode {number}"));
        // And the other way. A folder that a layer deletes and makes again is another one.
        let is_same = |old: &(Vec<String>, Vec<u8>)| old.1 != b"Directory" && pair[1].values().any(|new| new == old);
        let kept = pair[0].iter().filter(|(_, old)| is_same(old));
        kept.for_each(|(number, old)| assert_eq!(Some(old), pair[1].get(number)));
    }
}

#[test]
fn layers_become_one_tree_or_snapshots() {
    let scratch = Scratch::new("image-oci");
    let (want, image) = (scratch.folder("want"), scratch.join("image"));
    expected(&want);
    let want = plain(&Manifest::of(&mut FolderSource::new(&want)).unwrap());
    let folder = layout(&scratch.folder("layout"), &layers());
    let archive = scratch.join("layout.tar");
    let arguments = ["-C", folder.to_str().unwrap(), "-cf", archive.to_str().unwrap(), "."];
    run_ok(20, "tar", &arguments);
    for source in [&folder, &archive] {
        assert!(OciSource::is_at(source));
        let builder = Builder::new().source("/", OciSource::new(source, Layers::Flat)).unwrap();
        crate::build(builder, &image);
        assert_eq!(plain(&shown(&image, None)), want, "{}", source.display());
    }
    let builder = Builder::new().source("/", OciSource::new(&folder, Layers::Snapshots)).unwrap();
    let report = crate::build(builder.subvolume("@", false).unwrap().default_subvolume("@").unwrap(), &image);
    let names: Vec<String> =
        report.subvolumes.iter().map(|(_, path)| String::from_utf8(path.clone()).unwrap()).collect();
    assert_eq!(names.len(), 4, "{names:?}");
    assert_eq!(plain(&shown(&image, Some("@"))), want);
    assert_eq!(plain(&shown(&image, Some(&names[3]))), want);
    let first = plain(&shown(&image, Some(&names[1])));
    assert!(first.iter().any(|line| line.starts_with("/etc/deleted file")), "{first:?}");
    assert_numbers_are_kept(&image, &names[1..]);
    if butterfs_testkit::requirement::kernel_btrfs("layers_become_one_tree_or_snapshots") {
        let mount = KernelMount::new(&image, "subvolid=5,ro");
        for pair in names[1..].windows(2) {
            let [old, new] = [&pair[0], &pair[1]].map(|name| mount.path().join(name).to_str().unwrap().to_owned());
            let stream = scratch.join("stream");
            run_ok(20, "btrfs", &["send", "-q", "-p", &old, &new, "-f", stream.to_str().unwrap()]);
        }
        assert_eq!(mount.finish(), Vec::<String>::new());
    }
}

#[test]
fn what_does_not_fit_its_digest_is_refused() {
    let scratch = Scratch::new("image-oci-hostile");
    let folder = layout(&scratch.folder("layout"), &layers());
    let refused = |part: &str| {
        let error =
            Builder::new().source("/", OciSource::new(&folder, Layers::Flat)).unwrap().build(scratch.join("image"));
        let error = error.unwrap_err().to_string();
        assert!(error.contains(part), "{part}: {error}");
    };
    let index = std::fs::read_to_string(folder.join("index.json")).unwrap();
    for (from, to, part) in [
        ("sha256:", "sha256:../../../", "is none of sha256"),
        ("\"size\":", "\"size\":9", "but should be 9"),
        ("{", "[", "it is no JSON"),
        ("manifests", "manifest", "leads to no manifest"),
    ] {
        std::fs::write(folder.join("index.json"), index.replacen(from, to, 1)).unwrap();
        refused(part);
    }
    std::fs::write(folder.join("index.json"), &index).unwrap();
    // A layer that another one has been put in the place of.
    let layer = folder.join("blobs/sha256").join(sum(&layers()[2]));
    std::fs::write(&layer, archive(&[("etc/linked", b'0', "something els"), ("top", b'2', "etc/second")])).unwrap();
    refused("the digest is");
    // docker's form, with names that lead out.
    std::fs::remove_file(folder.join("index.json")).unwrap();
    std::fs::write(folder.join("manifest.json"), r#"[{"Config":"../../etc/passwd","Layers":[]}]"#).unwrap();
    refused("leads out");
}

#[test]
fn markers_and_digests_that_mean_nothing_are_refused() {
    let scratch = Scratch::new("image-oci-markers");
    for (number, marker) in ["d/.wh.", "d/.wh..", "d/.wh..."].into_iter().enumerate() {
        let lower = archive(&[("d/", b'5', ""), ("d/file", b'0', "x")]);
        let folder = layout(&scratch.folder(&number.to_string()), &[lower, archive(&[(marker, b'0', "")])]);
        let error = Builder::new().source("/", OciSource::new(&folder, Layers::Flat)).unwrap();
        let error = error.build(scratch.join("image")).unwrap_err().to_string();
        assert!(error.contains("hides no name"), "{marker}: {error}");
    }
    // docker's form, because nothing else says there what a layer decodes to.
    let top = scratch.folder("docker");
    let layer = archive(&[("file", b'0', "x")]);
    std::fs::write(top.join("layer.tar"), &layer).unwrap();
    std::fs::write(top.join("manifest.json"), r#"[{"Config":"config","Layers":["layer.tar"]}]"#).unwrap();
    for (digest, is_good) in [(format!("sha256:{}", sum(&layer)), true), (format!("sha512:{}", sum(&layer)), false)] {
        std::fs::write(top.join("config"), format!(r#"{{"rootfs":{{"diff_ids":["{digest}"]}}}}"#)).unwrap();
        let built =
            Builder::new().source("/", OciSource::new(&top, Layers::Flat)).unwrap().build(scratch.join("image"));
        assert_eq!(built.is_ok(), is_good, "{digest}");
    }
}

#[test]
fn an_image_of_a_container_is_known_by_its_documents() {
    let scratch = Scratch::new("image-oci-known");
    let web = scratch.folder("web");
    std::fs::write(web.join("manifest.json"), r#"{"name":"app","start_url":"/"}"#).unwrap();
    std::fs::write(web.join("index.json"), r#"{"manifests":[]}"#).unwrap();
    assert!(!OciSource::is_at(&web));
    let folder = layout(&scratch.folder("layout"), &layers());
    let packed = |name: &str, folder: &Path, options: &str| {
        let archive = scratch.join(name);
        let arguments = ["-C", folder.to_str().unwrap(), options, archive.to_str().unwrap(), "."];
        run_ok(20, "tar", &arguments);
        archive
    };
    let compressed = packed("layout.tgz", &folder, "-czf");
    assert!(!OciSource::is_at(&compressed) && OciSource::is_compressed_at(&compressed));
    assert!(!OciSource::is_compressed_at(&packed("web.tgz", &web, "-czf")));
    assert!(!OciSource::is_compressed_at(&packed("layout.tar", &folder, "-cf")));
    // A layer that waits for ever, or has no end.
    let layer = folder.join("blobs/sha256").join(sum(&layers()[2]));
    let made: [&dyn Fn(); 2] = [
        &|| {
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            rustix::fs::mknodat(rustix::fs::CWD, &layer, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        },
        &|| std::os::unix::fs::symlink("/dev/zero", &layer).unwrap(),
    ];
    for make in made {
        std::fs::remove_file(&layer).unwrap();
        make();
        let built = Builder::new().source("/", OciSource::new(&folder, Layers::Flat)).unwrap();
        let error = built.build(scratch.join("image")).unwrap_err().to_string();
        assert!(error.contains("it is no regular file"), "{error}");
    }
}

#[test]
fn equal_layers_of_docker_are_links() {
    let scratch = Scratch::new("image-oci-linked");
    let top = scratch.folder("docker");
    let layer = archive(&[("file", b'0', "x")]);
    std::fs::create_dir(top.join("1")).unwrap();
    std::fs::create_dir(top.join("2")).unwrap();
    std::fs::write(top.join("1/layer.tar"), &layer).unwrap();
    std::os::unix::fs::symlink("../1/layer.tar", top.join("2/layer.tar")).unwrap();
    std::fs::write(top.join("manifest.json"), r#"[{"Config":"config","Layers":["1/layer.tar","2/layer.tar"]}]"#)
        .unwrap();
    let digest = sum(&layer);
    let config = format!(r#"{{"rootfs":{{"diff_ids":["sha256:{digest}","sha256:{digest}"]}}}}"#);
    std::fs::write(top.join("config"), config).unwrap();
    let packed = scratch.join("docker.tar");
    run_ok(20, "tar", &["-C", top.to_str().unwrap(), "-cf", packed.to_str().unwrap(), "."]);
    for source in [&top, &packed] {
        assert!(OciSource::is_at(source));
        let builder = Builder::new().source("/", OciSource::new(source, Layers::Flat)).unwrap();
        assert_eq!(builder.build(scratch.join("image")).unwrap().inodes, 2, "{}", source.display());
    }
}

//! Raw images in stores and on HTTP servers.

use crate::model::open;
use butterfs_device::BlockDevice;
use butterfs_remote::{LocalFile, RangedImage};
use butterfs_store::{Settings, Store};
use butterfs_testkit::object_server::{Fate, Server, Tags};
use butterfs_testkit::rng::Rng;

#[test]
fn an_image_is_read_by_ranges_with_a_bounded_cache() {
    let server = Server::start(|_| Fate::Served);
    let mut bytes = vec![0; (20 << 20) + 12345];
    Rng::new(1).fill(&mut bytes);
    let store = open(&server);
    store.put("images/disk.raw", bytes.clone()).unwrap();
    let web = Store::open(&format!("{}/bucket/volume", server.endpoint), &Settings::default()).unwrap();
    for store in [store, web] {
        let image = RangedImage::open(&store, "images/disk.raw", 5 << 20, None).unwrap();
        assert_eq!(image.len(), bytes.len() as u64);
        assert!(image.is_read_only() && image.write_at(0, &[1]).is_err());
        let mut rng = Rng::new(2);
        for _ in 0..200 {
            let offset = rng.below(bytes.len() as u64);
            let len = rng.below(bytes.len() as u64 - offset).min(700_000) as usize;
            let mut read = vec![0; len];
            image.read_at(offset, &mut read).unwrap();
            assert!(read == bytes[offset as usize..offset as usize + len]);
        }
        assert!(image.read_at(bytes.len() as u64 - 1, &mut [0; 2]).is_err());
    }
}

const PATH: &str = "/bucket/volume/disk.raw";

/// A part of an image is read; then it is replaced by one with so many bytes, and no other part is read.
fn refuses_another(what: &str, server: &Server, store: &Store, bytes: usize, words: &str) {
    server.put(PATH, vec![1; 4 << 20]);
    let file = LocalFile::in_folder(&std::env::temp_dir()).unwrap();
    let image = RangedImage::open(store, "disk.raw", 1 << 20, Some(file)).unwrap();
    let mut read = [0; 512];
    image.read_at(0, &mut read).unwrap();
    server.put(PATH, vec![2; bytes]);
    for _ in 0..2 {
        let error = image.read_at(3 << 20, &mut read).unwrap_err();
        let sentence = error.to_string();
        let begin = format!("the image {} has changed since it was opened, open or mount it again: ", image.name());
        assert!(sentence.starts_with(&begin) && sentence.contains(words), "{what}, {bytes} bytes: {error}");
        assert_eq!(error.kind(), std::io::ErrorKind::StaleNetworkFileHandle, "{what}, {bytes} bytes");
    }
    assert_eq!(read, [1; 512], "{what}");
    // Another mount sees it.
    let again = RangedImage::open(store, "disk.raw", 1 << 20, None).unwrap();
    again.read_at(again.len() - 512, &mut read).unwrap();
    assert_eq!(read, [2; 512], "{what}");
}

#[test]
fn an_image_that_changes_is_not_mixed() {
    let server = Server::start(|_| Fate::Served);
    let web = Store::open(&format!("{}/bucket/volume", server.endpoint), &Settings::default()).unwrap();
    let stores = [open(&server), web.clone()];
    let longer = "it had 4194304 bytes and has 5242880 now";
    // (How versions are told apart, the stores, the words for the same length, and those for a longer image.)
    let cases: [(Tags, &[Store], &str, &str); 4] = [
        (Tags::Compared, &stores, "", ""),
        (Tags::Ignored, &stores, "its tag was", longer),
        (Tags::Weak, &stores, "its tag was W/", longer),
        // S3 always has tags.
        (Tags::None, &[web], "the time of its last change is another one", longer),
    ];
    for (tags, stores, same, longer) in cases {
        server.give_tags(tags);
        for store in stores {
            let what = format!("{tags:?}, {store:?}");
            refuses_another(&what, &server, store, 4 << 20, same);
            refuses_another(&what, &server, store, 5 << 20, longer);
            refuses_another(&what, &server, store, 1 << 20, "");
        }
    }
}

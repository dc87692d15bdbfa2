//! Raw images in stores and on HTTP servers.

use crate::model::open;
use butterfs_device::BlockDevice;
use butterfs_remote::{LocalFile, RangedImage};
use butterfs_store::{Settings, Store};
use butterfs_testkit::object_server::{Fate, Server};
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

#[test]
fn an_image_that_is_replaced_is_not_mixed() {
    let server = Server::start(|_| Fate::Served);
    let store = open(&server);
    store.put("disk.raw", vec![1; 4 << 20]).unwrap();
    let image =
        RangedImage::open(&store, "disk.raw", 1 << 20, Some(LocalFile::in_folder(&std::env::temp_dir()).unwrap()))
            .unwrap();
    let mut read = [0; 512];
    image.read_at(0, &mut read).unwrap();
    store.put("disk.raw", vec![2; 4 << 20]).unwrap();
    let error = image.read_at(3 << 20, &mut read).unwrap_err();
    assert!(error.to_string().contains("disk.raw"), "{error}");
}

//! Every example runs. They are compiled into this program, so that none of them can be an old build.

use std::error::Error;

/// An example that takes arguments has a function that gets them, because those of this program are the test runner's.
macro_rules! call {
    ($name:ident) => {
        super::$name::main()
    };
    ($name:ident $argument:expr) => {
        super::$name::run($argument)
    };
}

macro_rules! examples {
    ($($path:literal $name:ident($($argument:expr)?))*) => {
        $(#[allow(dead_code)]
        #[path = $path]
        mod $name;)*

        mod runs {
            $(#[test]
            fn $name() -> Result<(), Box<dyn super::Error>> {
                call!($name $($argument)?)
            })*
        }

        #[test]
        fn no_example_is_left_out() {
            let listed = [$(stringify!($name)),*];
            let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/examples")).unwrap();
            let files = files.map(|entry| entry.unwrap().path());
            for file in files.filter(|file| file.extension().is_some_and(|end| end == "rs")) {
                let name = file.file_stem().unwrap().to_str().unwrap();
                assert!(listed.contains(&name), "{name} is not run");
            }
            assert_eq!(listed.len(), 10);
        }
    };
}

examples! {
    "../examples/check.rs" check(Vec::new())
    "../examples/http_device.rs" http_device()
    "../examples/make_image.rs" make_image(Vec::new())
    "../examples/memory_device.rs" memory_device()
    "../examples/progress.rs" progress()
    "../examples/read_from_disk_image.rs" read_from_disk_image(Vec::new())
    "../examples/receive_into_image.rs" receive_into_image(Vec::new())
    "../examples/rescue.rs" rescue(Vec::new())
    "../examples/snapshot_and_send.rs" snapshot_and_send()
    "../examples/transaction.rs" transaction()
}

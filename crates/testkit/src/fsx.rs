//! The frequency of the operations of fsx.

const SETTINGS: &str = r#"
flen = 1048576
[opsize]
max = 131072
[weights]
close_open = 2
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = 2
truncate = 8
fsync = SYNCS
fdatasync = SYNCS
posix_fallocate = 4
punch_hole = 6
sendfile = 2
posix_fadvise = 2
copy_file_range = COPIES
"#;

/// The settings of a run, with the weights of fsync and fdatasync and of copies within the file.
pub fn settings(syncs: &str, copies: &str) -> String {
    SETTINGS.replace("SYNCS", syncs).replace("COPIES", copies)
}

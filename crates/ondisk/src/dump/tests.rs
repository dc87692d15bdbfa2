use super::*;

pub(super) fn options() -> DumpOptions<'static> {
    DumpOptions {
        hide_names: false,
        csum_headers: false,
        csum_items: false,
        checksum: ChecksumKind::Crc32c,
        sectorsize: 4096,
        utc_offset: &|_| 0,
    }
}

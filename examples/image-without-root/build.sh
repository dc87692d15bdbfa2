#!/bin/sh
# Builds a disk image of a root file system, without privileges and the same bytes each time.
#
#   build.sh [ROOTFS [IMAGE]]      a folder, an archive of tar or an image of a container; rootfs.tar and disk.img
set -eu
rootfs=${1:-rootfs.tar}
image=${2:-disk.img}

# No time in the image is later than this, and all UUIDs follow from the content.
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct)}"
export SOURCE_DATE_EPOCH

butterfs image build "$image" --from "@=$rootfs" --subvol default:@ --all-root --compress zstd:15 --free 256M
butterfs check -q "$image"
# A digest of everything that the image shows: the next build of the same sources prints the same one.
butterfs image verify "$image" | tee "$image.digest"

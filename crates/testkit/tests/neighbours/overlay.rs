//! The kernel's overlayfs with its upper folder on our mount.

use crate::both;

/// Copy-up, whiteouts, opaque folders, renames of folders, hard links, attributes; then what the merged tree shows and
/// what lies in the upper folder.
const OVERLAY: &str = r#"
mkdir -p "$scratch/lower" upper work; m="$scratch/merged"; mkdir -p "$m"; l="$scratch/lower"
mkdir -p "$l/folder/sub" "$l/gone" "$l/moved/deep"; seq 1 5000 > "$l/folder/file"; echo one > "$l/folder/sub/one"
echo two > "$l/gone/two"; echo three > "$l/moved/deep/three"; ln -sfn folder/file "$l/link"; echo four > "$l/four"
setfattr -n user.colour -v blue "$l/four"
options="lowerdir=$l,upperdir=$at/upper,workdir=$at/work"
mounted=
for more in ",redirect_dir=on,index=off,metacopy=off" ",redirect_dir=off,index=off,metacopy=off"; do
  if mount -t overlay overlay -o "$options$more,xino=off" "$m" 2>/dev/null; then mounted="$more"; break; fi
done
trap 'umount "$m" 2>/dev/null || umount -l "$m" 2>/dev/null || true' EXIT
echo "mounted with $mounted"; [ -n "$mounted" ]
cd "$m"
echo more >> folder/file; rm -r gone; mkdir gone; echo new > gone/new
case "$mounted" in *redirect_dir=on*) mv moved renamed;; *) echo no redirects;; esac
rm link; ln four five; setfattr -n user.shape -v round four; chmod 600 four; mv folder/sub/one folder/sub/eins
mkfifo pipe; touch -d @1000000000 folder; truncate -s 100 folder/file
for n in $(seq 1 $((300 * rounds))); do echo $n > "n$n"; done
for n in $(seq 1 2 $((300 * rounds))); do mv "n$n" "m$n"; done
for n in $(seq 2 2 $((300 * rounds))); do rm "n$n"; done
tree() { find . -mindepth 1 \( -name 'm[0-9]*' -prune \) -o -printf '%p %y %m %s %l\n' |
    grep -v '^\. ' | sed 's/ d \([0-9]*\) [0-9]* / d \1 /' | sort; ls | wc -l; }
tree; getfattr -d four 2>/dev/null; cat gone/new folder/sub/eins
cd "$at"; umount "$m"
find upper -type c | sort; getfattr -Rdm 'trusted.overlay.(opaque|redirect)|user.overlay' upper 2>/dev/null |
    grep -v '^$' || true
"#;

const OVERLAY_AGAIN: &str = r#"
m="$scratch/merged"; mount -t overlay overlay -o "lowerdir=$scratch/lower,upperdir=$at/upper,workdir=$at/work" "$m"
trap 'umount "$m"' EXIT
cd "$m"; find . -mindepth 1 -printf '%p %y %m\n' | sort | md5sum; md5sum folder/file folder/sub/eins four five; cd "$at"
"#;

#[test]
fn overlayfs_on_top() {
    both("overlayfs_on_top", &["setfattr", "getfattr"], (OVERLAY, OVERLAY_AGAIN), 300);
}

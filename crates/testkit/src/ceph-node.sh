#!/bin/bash
# One-node Ceph (mon + memstore osd + radosgw, no mgr) entirely below a scratch folder.
#   ceph-node.sh FOLDER S3PORT         start; prints 'ready' when S3 works
#   ceph-node.sh FOLDER S3PORT stop    kill what it started (by pid files)
# Ports on 127.0.0.1: S3PORT radosgw, S3PORT+1 monitor, S3PORT+10..+29 osd.
# S3: user 'test', key 'key', secret 'secret', bucket 'bucket'. Data is in memory: FOLDER is for one run.
set -u
[ $# -ge 2 ] || { echo "usage: $0 FOLDER S3PORT [stop]" >&2; exit 2; }
mkdir -p "$1" || exit 1
D=$(cd "$1" && pwd -P); P=$2; S3=http://127.0.0.1:$P
unset CEPH_ARGS CEPH_KEYRING http_proxy https_proxy HTTP_PROXY HTTPS_PROXY all_proxy ALL_PROXY
export CEPH_CONF=$D/ceph.conf

# True if the pid in file $1 is still one of ours (its command line names our ceph.conf).
ours() {
  pid=$(tr -dc 0-9 2>/dev/null <<<"$(cat "$1" 2>/dev/null)"); [ -n "$pid" ] || return 1
  mine "$pid"
}
mine() { cat "/proc/$1/cmdline" 2>/dev/null | tr '\0' '\n' | grep -qxF -- "$D/ceph.conf"; }
stop() {
  local f i p
  for f in "$D"/run/{rgw,osd,mon}.pid; do
    if ours "$f"; then
      p=$pid; kill -TERM "$p"
      for i in $(seq 80); do  # a daemon removes its pid file before it is gone
        mine "$p" || break
        [ "$i" = 40 ] && kill -KILL "$p"
        sleep 0.1
      done
      mine "$p" && { echo "ceph-node: pid $p ($f) did not die" >&2; rc=1; }
    fi
    rm -f "$f"
  done
}
if [ "${3:-}" = stop ]; then rc=0; stop; exit $rc; fi

END=$((SECONDS + 88))
left() { local n=$((END - SECONDS)); [ $n -gt 0 ] && echo $n || echo 1; }
die() { echo "ceph-node: $*; see $D/log" >&2; rc=1; stop; exit 1; }
run() { timeout "$(left)" "$@" >>"$D/log/setup.log" 2>&1 || die "failed: $*"; }

for f in "$D"/run/{rgw,osd,mon}.pid; do ours "$f" && { echo "ceph-node: already running in $D" >&2; exit 1; }; done
for p in "$P" $((P + 1)); do
  (exec 3<>"/dev/tcp/127.0.0.1/$p") 2>/dev/null && { echo "ceph-node: port $p is in use" >&2; exit 1; }
done
rm -rf "$D"/{mon,osd,rgw,run,log,crash,keyring,monmap,ceph.conf}
mkdir -p "$D"/{mon,osd,rgw,run,log,crash} || exit 1
# A unix socket's path must fit in 107 bytes; without one, nothing here is lost.
ASOK="$D/run/\$name.\$pid.asok"; [ ${#D} -gt 65 ] && ASOK=
FSID=$(cat /proc/sys/kernel/random/uuid); OSD=$(cat /proc/sys/kernel/random/uuid)

cat >"$D/ceph.conf" <<CONF
[global]
monmap = $D/monmap
fsid = $FSID
mon_host = [v1:127.0.0.1:$((P + 1))]
mon_initial_members = a
public_network = 127.0.0.0/8
cluster_network = 127.0.0.0/8
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_msgr2 = false
ms_bind_ipv6 = false
ms_bind_port_min = $((P + 10))
ms_bind_port_max = $((P + 29))
ms_async_op_threads = 1
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
auth_supported = none
keyring = $D/keyring
run_dir = $D/run
admin_socket = $ASOK
log_file = $D/log/\$name.log
mon_cluster_log_file = $D/log/cluster.log
log_to_syslog = false
log_to_stderr = false
err_to_stderr = true
crash_dir = $D/crash
setuser_match_path =
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 4
osd_pool_default_pgp_num = 4
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_allow_pool_delete = true
mon_max_pg_per_osd = 1000
mon_warn_on_pool_no_redundancy = false
mon_data_avail_warn = 1
mon_data_avail_crit = 0
mon_osd_full_ratio = 0.99
mon_osd_nearfull_ratio = 0.98
mon_osd_backfillfull_ratio = 0.985
[mon]
mon_data = $D/mon
pid_file = $D/run/mon.pid
mon_memory_target = 268435456
mon_memory_autotune = false
rocksdb_cache_size = 33554432
paxos_propose_interval = 0.1
paxos_min_wait = 0.02
mon_tick_interval = 2
[osd]
osd_data = $D/osd
pid_file = $D/run/osd.pid
osd_objectstore = memstore
memstore_device_bytes = 4294967296
osd_memory_target = 939524096
osd_op_num_shards = 2
osd_op_num_threads_per_shard = 1
osd_scrub_begin_hour = 0
osd_scrub_end_hour = 0
osd_mclock_skip_benchmark = true
[client.rgw]
rgw_data = $D/rgw
pid_file = $D/run/rgw.pid
rgw_frontends = beast endpoint=127.0.0.1:$P
rgw_thread_pool_size = 16
[client]
rgw_dns_name = 127.0.0.1
rgw_run_sync_thread = false
rgw_enable_usage_log = false
rgw_enable_ops_log = false
rgw_rados_pool_pg_num_min = 4
rgw_override_bucket_index_max_shards = 1
rgw_dynamic_resharding = false
rgw_gc_max_objs = 4
rgw_lc_max_objs = 4
rgw_usage_max_shards = 1
rgw_num_rados_handles = 1
rgw_s3_auth_use_keystone = false
CONF
C=(-c "$D/ceph.conf")
# 'timeout' runs the program, not this function.
ceph() { timeout "$(left)" ceph "${C[@]}" "$@" >>"$D/log/setup.log" 2>&1; }

run ceph-authtool --create-keyring "$D/keyring" --gen-key -n mon. --cap mon 'allow *'
run ceph-authtool "$D/keyring" --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
run ceph-authtool "$D/keyring" --gen-key -n client.rgw --cap mon 'allow *' --cap osd 'allow *'
run ceph-authtool "$D/keyring" --gen-key -n osd.0 --cap mon 'allow profile osd' --cap osd 'allow *'
run monmaptool --create --clobber --fsid "$FSID" --addv a "[v1:127.0.0.1:$((P + 1))]" "$D/monmap"
run ceph-mon "${C[@]}" -i a --mkfs --monmap "$D/monmap" --keyring "$D/keyring"
run ceph-mon "${C[@]}" -i a
# Pacific: a client that got its monitor addresses from the monitor starts with a zero fsid, and a
# command sent before its monmap arrives fails ('wrong fsid'); a third of a second later it works.
again() { local i; for i in 1 2 3 4; do "$@" && return; echo "retry: $*" >>"$D/log/setup.log"; sleep 0.3; done; return 1; }
again ceph osd new "$OSD" 0 || die 'ceph osd new failed'
run ceph-osd "${C[@]}" -i 0 --mkfs --osd-uuid "$OSD"
osd() { timeout "$(left)" ceph-osd "${C[@]}" -i 0 --no-mon-config >>"$D/log/setup.log" 2>&1; }
again osd || die 'ceph-osd did not start'
run radosgw-admin "${C[@]}" -n client.rgw user create --uid test --display-name test \
  --access-key key --secret-key secret --max-buckets 100000
run radosgw "${C[@]}" -n client.rgw

# curl 7.88 signs the Host header without its port, and sends no payload hash, unless told.
s3() { curl -s -o /dev/null -w '%{http_code}' --noproxy '*' --max-time 10 --aws-sigv4 aws:amz:us-east-1:s3 --user key:secret \
  -H "Host: 127.0.0.1:$P" -H 'x-amz-content-sha256: UNSIGNED-PAYLOAD' "$@"; }
while :; do
  [ $SECONDS -lt $END ] || die "no bucket in time (last answer: ${code:-none})"
  code=$(s3 -X PUT "$S3/bucket")
  [ "$code" = 200 ] && [ "$(s3 "$S3/bucket?list-type=2")" = 200 ] && break
  sleep 0.3
done
echo ready

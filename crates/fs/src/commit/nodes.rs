//! Writing tree blocks, of a commit or of a log.

use crate::error::Result;
use crate::extent::rows;
use crate::transaction::Core;
use butterfs_tree::{BlockIdentity, Node};
use butterfs_volume::Caching;
use std::sync::Arc;

/// Tree blocks are written in runs of at most this many bytes.
const WRITE_RUN_BYTES: usize = 1 << 20;
/// Runs of at least this many bytes go to the device at once, while the next ones are prepared.
const BEGIN_WRITE_OUT_BYTES: usize = 256 << 10;

/// Writes nodes, which lie in the order of their addresses, neighbours in one go.
pub(crate) fn write_nodes(core: &Core, nodes: &[Arc<Node>], identity: &BlockIdentity) -> Result<()> {
    let nodesize = core.nodesize() as usize;
    let map = core.volume.chunk_map();
    let mut rest = nodes;
    let mut buffer = vec![0; (nodes.len() * nodesize).min(WRITE_RUN_BYTES.max(nodesize))];
    while let Some(first) = rest.first() {
        let start = first.at();
        let chunk_end = map.get(start).map_or(start, |chunk| chunk.end());
        let most = rest.len().min(buffer.len() / nodesize);
        let follows = |index: usize| {
            let at = start.plus((index * nodesize) as u64);
            rest[index].at() == at && at < chunk_end
        };
        let run = (1..most).take_while(|&index| follows(index)).count() + 1;
        for (node, out) in rest[..run].iter().zip(buffer.chunks_exact_mut(nodesize)) {
            node.seal_into(out, identity)?;
        }
        let bytes = run * nodesize;
        core.env().passes("tree blocks are written");
        rows::write(core, start, &buffer[..bytes], Caching::Kept)?;
        rest = &rest[run..];
        // After the last one the flush comes at once.
        if !rest.is_empty() && bytes >= BEGIN_WRITE_OUT_BYTES {
            core.volume.begin_write_out(start, bytes);
        }
    }
    Ok(())
}

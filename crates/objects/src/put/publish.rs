//! The end of a put: data is waited for, the nodes that the store lacks are packed into segments, and the manifest is
//! written.

use super::contents::unplaced;
use super::{Open, Options, failure};
use crate::digest::Digest;
use crate::items::{EXTENT, Extent, parts};
use crate::manifest::Manifest;
use crate::node::Node;
use crate::piece::{Encoder, PieceRef};
use crate::repository::Repository;
use crate::scratch::Scratch;
use crate::segment::{self, MAGIC, Placed, SEGMENT_BYTES, Sent};
use crate::session::Session;
use crate::tree::{Nodes, Root};
use butterfs_send::apply::Failure;
use butterfs_store::Result;
use std::collections::HashSet;

/// Bytes of one piece of the list of pieces.
const LIST_BYTES: usize = PieceRef::LEN * 8192;
/// The first bytes of a segment that the packer has not named yet; a number follows.
const MARK: [u8; 24] = [0xfc; 24];

impl Open {
    /// Ends the put.
    pub(super) fn publish(
        mut self,
        repository: &Repository,
        options: &Options,
        session: &mut Session,
    ) -> std::result::Result<(Manifest, Sent), Failure> {
        self.end_piece()?;
        self.send_segment()?;
        let done = self.seal(repository, options, session);
        done.map_err(failure)
    }

    fn seal(mut self, repository: &Repository, options: &Options, session: &mut Session) -> Result<(Manifest, Sent)> {
        let (placed, sent, existing) = self.uploads.finish()?;
        self.index.settle()?;
        let mut packer = Packer {
            repository,
            session,
            encoder: Encoder::new(options.level),
            placed: &placed,
            existing: &existing,
            current: MAGIC.to_vec(),
            names: Vec::new(),
            sent,
        };
        let root = self.index.root.map(|root| packer.tree(&self.index.nodes, root)).transpose()?;
        let mut lists = Vec::new();
        self.new.chunks(LIST_BYTES, |chunk| {
            let references = chunk.chunks(PieceRef::LEN).filter_map(PieceRef::from_bytes);
            let placed: Vec<u8> = references.flat_map(|piece| packer.place(piece).to_bytes()).collect();
            lists.push(packer.piece(&placed)?);
            Ok(())
        })?;
        packer.seal()?;
        let name = |at: PieceRef| hex::encode(packer.named(at).to_bytes());
        let manifest = Manifest {
            name: String::from_utf8_lossy(&self.name).into_owned(),
            uuid: hex::encode(self.uuid),
            transid: self.transid,
            parent: self.parent.as_ref().map(Manifest::id),
            time: options.now,
            bytes: self.bytes,
            inodes: self.inodes,
            next_inode: self.next_inode,
            stream: self.stream,
            root: root.map_or_else(String::new, |root| name(root.at)),
            level: root.map_or(0, |root| root.level),
            pieces: lists.into_iter().map(name).collect(),
            sent: packer.sent.bytes,
        };
        let sent = packer.sent;
        session.publish(&manifest)?;
        Ok((manifest, sent))
    }
}

/// Packs nodes and lists into segments one after the other.
///
/// Until a segment is complete it has a number instead of a name. A node that is written refers to its own segment by
/// zero, and to complete ones by their names.
struct Packer<'s> {
    repository: &'s Repository,
    session: &'s mut Session,
    encoder: Encoder,
    placed: &'s [Placed],
    existing: &'s HashSet<Digest>,
    current: Vec<u8>,
    /// Names of the segments that are complete.
    names: Vec<Digest>,
    sent: Sent,
}

impl Packer<'_> {
    /// Appends a piece.
    fn piece(&mut self, raw: &[u8]) -> Result<PieceRef> {
        let mut segment = [0xfc; 32];
        segment[MARK.len()..].copy_from_slice(&(self.names.len() as u64).to_le_bytes());
        let offset = self.current.len() as u32;
        let stored = self.encoder.append(raw, self.repository.keys(), &mut self.current);
        let digest = self.repository.digest(raw);
        if self.current.len() >= SEGMENT_BYTES {
            self.seal()?;
        }
        Ok(PieceRef { segment: Digest(segment), offset, stored, raw: raw.len() as u32, digest })
    }

    /// Puts the segment that is being filled.
    fn seal(&mut self) -> Result<()> {
        if self.current.len() == MAGIC.len() {
            return Ok(());
        }
        self.session.refresh()?;
        let bytes = std::mem::replace(&mut self.current, MAGIC.to_vec());
        let name = Digest::of(&bytes);
        self.sent.add(segment::put(self.repository.store(), &name, bytes.into(), self.existing)?);
        self.names.push(name);
        Ok(())
    }

    /// The reference with the name of its segment, or with zero where that has none yet.
    fn named(&self, at: PieceRef) -> PieceRef {
        let (mark, number) = at.segment.0.split_at(MARK.len());
        if mark != MARK {
            return at;
        }
        let number = u64::from_le_bytes(number.try_into().expect("8 bytes")) as usize;
        PieceRef { segment: self.names.get(number).copied().unwrap_or_default(), ..at }
    }

    /// The reference to a piece of data, which the store has now.
    fn place(&self, at: PieceRef) -> PieceRef {
        let Some(number) = unplaced(&at) else { return at };
        let segment = &self.placed[number];
        let (offset, stored) = segment.pieces[at.offset as usize];
        PieceRef { segment: segment.name, offset, stored, ..at }
    }

    /// Writes the nodes of a tree that the store lacks; returns the root.
    fn tree(&mut self, nodes: &Scratch, root: Root) -> Result<Root> {
        Ok(Root { at: self.node(nodes, root.at)?, level: root.level })
    }

    fn node(&mut self, nodes: &Scratch, at: PieceRef) -> Result<PieceRef> {
        if Scratch::number(&at).is_none() {
            return Ok(at);
        }
        let mut node = Node::clone(&*nodes.read(&at)?);
        let wrong = || nodes.damaged(&at, "the local file of nodes was changed");
        if node.level == 0 {
            for (key, value) in &mut node.entries {
                if let Some((_, EXTENT, _)) = parts(key) {
                    let extent = Extent::from_bytes(value).ok_or_else(wrong)?;
                    let data = extent.data.map(|(skip, piece)| (skip, self.place(piece)));
                    *value = Extent { data, ..extent }.to_bytes();
                }
            }
            return self.piece(&node.encode());
        }
        let mut children = Vec::with_capacity(node.entries.len());
        for (_, value) in &node.entries {
            let child = PieceRef::from_bytes(value).ok_or_else(wrong)?;
            children.push(self.node(nodes, child)?);
        }
        for ((_, value), child) in node.entries.iter_mut().zip(children) {
            *value = self.named(child).to_bytes().to_vec();
        }
        self.piece(&node.encode())
    }
}

//! zstd extents: one standard frame without dictionary, whose window is at most 128 KiB.
//!
//! The frame is decoded as a stream: that bounds the decoder's memory by the window, and lets a frame be cut that
//! holds more than the caller asked for.

use super::{CodecError, error};
use zstd::zstd_safe::{CCtx, CParameter, DCtx, DParameter, InBuffer, OutBuffer, ResetDirective, get_error_name};

/// The largest window that the kernel's decoder accepts, as a power of two.
const WINDOW_LOG: u32 = 17;

/// Decodes into `out`; returns the bytes produced.
pub fn decompress(stream: &[u8], out: &mut [u8]) -> Result<usize, CodecError> {
    let mut context = DCtx::create();
    context.set_parameter(DParameter::WindowLogMax(WINDOW_LOG)).map_err(named)?;
    let wanted = out.len();
    let mut input = InBuffer::around(stream);
    let mut output = OutBuffer::around(out);
    while output.pos() < wanted {
        let before = (input.pos(), output.pos());
        let hint = context.decompress_stream(&mut output, &mut input).map_err(named)?;
        if hint == 0 {
            break;
        }
        if before == (input.pos(), output.pos()) {
            return error("zstd: the frame ends early");
        }
    }
    Ok(output.pos())
}

/// Compresses; keeps its tables.
#[derive(Default)]
pub struct Encoder(Option<CCtx<'static>>);

impl Encoder {
    /// Encodes `input`, or `None` when the result would be longer than `limit`.
    pub fn compress(&mut self, input: &[u8], level: i32, limit: usize) -> Option<Vec<u8>> {
        let context = self.0.get_or_insert_with(CCtx::create);
        // A frame that did not fit is still open.
        context.reset(ResetDirective::SessionOnly).ok()?;
        context.set_parameter(CParameter::CompressionLevel(level)).ok()?;
        context.set_parameter(CParameter::WindowLog(WINDOW_LOG)).ok()?;
        let mut out = Vec::with_capacity(limit);
        context.compress2(&mut out, input).ok()?;
        Some(out)
    }
}

fn named(code: usize) -> CodecError {
    CodecError(format!("zstd: {}", get_error_name(code)))
}

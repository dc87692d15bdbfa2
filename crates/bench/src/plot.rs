//! Ratios as horizontal bars on a logarithmic scale, as SVG.
//!
//! A bar to the left of the line is less than the kernel's, to the right more; its colour says whether that is good.

use crate::table::Bar;
use std::fmt::Write;

const LABEL: f64 = 330.0;
const WIDTH: f64 = 420.0;
const ROW: f64 = 20.0;
/// The scale ends at a 64th and at 64 times.
const DECADES: f64 = 6.0;

/// The picture of `bars` under a title.
pub fn svg(title: &str, bars: &[Bar]) -> String {
    let height = 56.0 + ROW * bars.len() as f64;
    let total = LABEL + WIDTH + 70.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{total}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"8\" y=\"16\" \
         font-size=\"12\">{}</text>\n",
        escaped(title)
    );
    for power in (-6..=6).step_by(2) {
        let x = position(2f64.powi(power));
        let label = if power < 0 { format!("1/{}", 1 << -power) } else { format!("{}", 1 << power) };
        let colour = if power == 0 { "black" } else { "#ddd" };
        let bottom = height - 8.0;
        let _ = writeln!(
            out,
            "<line x1=\"{x}\" y1=\"40\" x2=\"{x}\" y2=\"{bottom}\" stroke=\"{colour}\"/>\
             <text x=\"{x}\" y=\"36\" text-anchor=\"middle\" fill=\"#555\">{label}</text>"
        );
    }
    for (index, bar) in bars.iter().enumerate() {
        let y = 44.0 + ROW * index as f64;
        let (from, to) = (position(1.0).min(position(bar.ratio)), position(1.0).max(position(bar.ratio)));
        let colour = if (bar.ratio <= 1.0) == bar.less_is_better { "#2a7f62" } else { "#b5523b" };
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text><rect x=\"{from:.1}\" y=\"{y}\" \
             width=\"{:.1}\" height=\"14\" fill=\"{colour}\"/><text x=\"{:.1}\" y=\"{}\">{:.2}x</text>",
            LABEL - 8.0,
            y + 11.0,
            escaped(&bar.what),
            (to - from).max(1.0),
            to + 4.0,
            y + 11.0,
            bar.ratio
        );
    }
    out.push_str("</svg>\n");
    out
}

fn position(ratio: f64) -> f64 {
    let place = ratio.max(1e-9).log2().clamp(-DECADES, DECADES);
    LABEL + WIDTH * (place + DECADES) / (2.0 * DECADES)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

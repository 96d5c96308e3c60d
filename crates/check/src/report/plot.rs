//! Plots as SVG, without a library or a script.

use crate::judge::Corruption;
use crate::run::Answer;
use std::fmt::Write as _;

/// A bar: label, share from 0 to 1, what stands above it, and whether it is a bad one.
pub struct Bar {
    /// Below it.
    pub label: String,
    /// Its height, 0 to 1.
    pub share: f64,
    /// Above it.
    pub text: String,
    /// Drawn in the colour of damage.
    pub is_bad: bool,
}

/// Text that may stand in a page.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() && c != '\n' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// A plot of bars, with the titles of its axes.
pub fn bars(bars: &[Bar], across: &str, up: &str) -> String {
    const WIDTH: f64 = 860.0;
    const HEIGHT: f64 = 220.0;
    const FOOT: f64 = 40.0;
    const HEAD: f64 = 34.0;
    let mut svg = format!(r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">"#);
    let step = WIDTH / bars.len().max(1) as f64;
    for (at, bar) in bars.iter().enumerate() {
        let full = HEIGHT - FOOT - HEAD;
        let height = (full * bar.share.clamp(0.0, 1.0)).max(1.0);
        let (x, y) = (at as f64 * step, HEIGHT - FOOT - height);
        let class = if bar.is_bad { "bad" } else { "good" };
        let middle = x + step / 2.0;
        // Writing to a String cannot fail.
        let _ = write!(
            svg,
            r#"<rect class="{class}" x="{:.1}" y="{y:.1}" width="{:.1}" height="{height:.1}"/><text x="{middle:.1}" y="{:.1}">{}</text><text x="{middle:.1}" y="{:.1}">{}</text>"#,
            x + step * 0.1,
            step * 0.8,
            y - 4.0,
            escape(&bar.text),
            HEIGHT - 24.0,
            escape(&bar.label),
        );
    }
    let _ = write!(
        svg,
        r#"<text class="left" x="0" y="14">{}</text><text x="{}" y="{}">{}</text></svg>"#,
        escape(up),
        WIDTH / 2.0,
        HEIGHT - 6.0,
        escape(across),
    );
    svg
}

/// Every answer as a point: when it was asked for, and how many were in flight.
pub fn timeline(answers: &[Answer]) -> String {
    const WIDTH: f64 = 860.0;
    const HEIGHT: f64 = 220.0;
    const FOOT: f64 = 24.0;
    let last = answers.iter().map(|a| a.asked_ms).max().unwrap_or(0).max(1) as f64;
    let most = f64::from(answers.iter().map(|a| a.in_flight).max().unwrap_or(0).max(1));
    let mut svg = format!(r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">"#);
    // Damage is drawn last, on top.
    let mut order: Vec<&Answer> = answers.iter().collect();
    order.sort_by_key(|a| a.verdict.corruption().is_some());
    for a in order {
        let x = 30.0 + (WIDTH - 40.0) * a.asked_ms as f64 / last;
        let y = 24.0 + (HEIGHT - FOOT - 28.0) * (1.0 - f64::from(a.in_flight) / most);
        let class = a.verdict.class();
        let radius = if a.verdict.corruption().is_some() { 5.0 } else { 2.0 };
        let what = a.verdict.corruption().map_or(class, Corruption::class);
        let _ = write!(
            svg,
            r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="{radius}"><title>session {} request {}: {what}</title></circle>"#,
            a.session,
            a.step + 1,
        );
    }
    let _ = write!(
        svg,
        r#"<text class="left" x="0" y="14">{most} in flight</text><text x="{2}" y="{0:.0}">since the load began</text><text class="left" x="30" y="{0:.0}">0 s</text><text class="right" x="{WIDTH}" y="{0:.0}">{1:.1} s</text></svg>"#,
        HEIGHT - 6.0,
        last / 1000.0,
        WIDTH / 2.0,
    );
    svg
}

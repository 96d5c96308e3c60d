//! Small plots as inline SVG.

use super::table::figure;
use std::fmt::Write as _;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 40.0;

/// A line of a plot.
pub(super) struct Series {
    pub name: String,
    /// `(x, y, half of the interval)`, by rising x.
    pub points: Vec<(f64, f64, f64)>,
    pub has_dots: bool,
}

/// A plot.
pub(super) struct Plot {
    pub title: &'static str,
    pub x_name: &'static str,
    pub y_name: &'static str,
    pub series: Vec<Series>,
    /// A span of x that is shaded.
    pub shade: Option<(f64, f64)>,
}

/// A text inside markup.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// Steps of 1, 2 or 5 times a power of ten, about five of them up to `max`.
fn ticks(max: f64) -> Vec<f64> {
    if !(max.is_finite() && max > 0.0) {
        return vec![0.0, 1.0];
    }
    let raw = max / 5.0;
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|s| *s >= raw);
    let step = step.unwrap_or(raw);
    (0..=(max / step).ceil() as usize).map(|i| i as f64 * step).collect()
}

fn label(value: f64) -> String {
    match value {
        v if v >= 1000.0 => format!("{}k", (v / 100.0).round() / 10.0),
        v if v.fract() == 0.0 => format!("{v:.0}"),
        v => figure(v),
    }
}

impl Plot {
    /// The plot as SVG; nothing where it has no points.
    pub(super) fn svg(&self) -> String {
        let all = || self.series.iter().flat_map(|s| &s.points);
        let is_fit = |p: &&(f64, f64, f64)| p.0.is_finite() && p.1.is_finite();
        if all().filter(is_fit).count() == 0 {
            return String::new();
        }
        let top = |values: Vec<f64>| {
            let max = values.into_iter().filter(|v| v.is_finite()).fold(0.0, f64::max);
            ticks(max)
        };
        let x_ticks = top(all().map(|p| p.0).collect());
        let y_ticks = top(all().map(|p| p.1 + p.2).collect());
        let end = |t: &[f64]| t.last().copied().unwrap_or(1.0);
        let (x_max, y_max) = (end(&x_ticks), end(&y_ticks));
        let x = |v: f64| LEFT + (WIDTH - LEFT - RIGHT) * v / x_max;
        let y = |v: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * v / y_max;
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\"><title>{0}</title>\
             <text class=\"t\" x=\"{LEFT}\" y=\"16\">{0}</text>",
            escape(self.title)
        );
        if let Some((from, to)) = self.shade {
            let (a, b) = (x(from), x(to.min(x_max)));
            let (w, h) = ((b - a).max(0.0), HEIGHT - TOP - BOTTOM);
            let _ = write!(
                svg,
                "<rect class=\"shade\" x=\"{a:.1}\" y=\"{TOP}\" width=\"{w:.1}\" height=\"{h}\"/>"
            );
        }
        for t in &y_ticks {
            let at = y(*t);
            let _ = write!(
                svg,
                "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{}\"/><text class=\"y\" x=\"{}\" \
                 y=\"{:.1}\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 4.0,
                label(*t)
            );
        }
        for t in &x_ticks {
            let (at, low) = (x(*t), HEIGHT - BOTTOM + 16.0);
            let _ = write!(svg, "<text class=\"x\" x=\"{at:.1}\" y=\"{low}\">{}</text>", label(*t));
        }
        let (middle, low) = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 6.0);
        let _ = write!(
            svg,
            "<text class=\"x\" x=\"{middle}\" y=\"{low}\">{}</text><text class=\"y\" x=\"{}\" \
             y=\"16\">{}</text>",
            escape(self.x_name),
            WIDTH - RIGHT,
            escape(self.y_name)
        );
        for (at, series) in self.series.iter().enumerate() {
            draw(&mut svg, series, at % 6, &x, &y);
        }
        svg.push_str("</svg>");
        svg + &self.legend()
    }

    fn legend(&self) -> String {
        if self.series.len() < 2 {
            return String::new();
        }
        let item = |(at, s): (usize, &Series)| {
            format!("<span class=\"k s{}\">{}</span>", at % 6, escape(&s.name))
        };
        let items: String = self.series.iter().enumerate().map(item).collect();
        format!("<p class=\"legend\">{items}</p>")
    }
}

fn draw(
    svg: &mut String,
    series: &Series,
    colour: usize,
    x: &impl Fn(f64) -> f64,
    y: &impl Fn(f64) -> f64,
) {
    let mut path = String::new();
    let mut marks = String::new();
    for &(px, py, half) in series.points.iter().filter(|p| p.0.is_finite() && p.1.is_finite()) {
        let (cx, cy) = (x(px), y(py));
        let _ = write!(path, "{}{cx:.1} {cy:.1}", if path.is_empty() { "M" } else { "L" });
        if half > 0.0 && half.is_finite() {
            let (a, b) = (y((py - half).max(0.0)), y(py + half));
            let _ = write!(marks, "<path class=\"s{colour}\" d=\"M{cx:.1} {a:.1}V{b:.1}\"/>");
        }
        if series.has_dots {
            let _ = write!(
                marks,
                "<circle class=\"s{colour}\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3\"><title>{}: {}, \
                 {}</title></circle>",
                escape(&series.name),
                label(px),
                figure(py)
            );
        }
    }
    let _ = write!(svg, "<path class=\"s{colour}\" d=\"{path}\"/>{marks}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_cover_the_values() {
        assert_eq!(ticks(96.0), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        for max in [0.003, 1.0, 7.7, 760.0, 1e9] {
            assert!(*ticks(max).last().unwrap() >= max && ticks(max).len() <= 12);
        }
        assert_eq!(ticks(f64::NAN).len(), 2);
    }

    #[test]
    fn names_from_outside_stay_text() {
        let points = vec![(1.0, 2.0, 0.5), (f64::NAN, 1.0, 0.0)];
        let series =
            |name: &str| Series { name: name.into(), points: points.clone(), has_dots: true };
        let series = vec![series("<script>"), series("b")];
        let plot = Plot { title: "t", x_name: "x", y_name: "y", series, shade: Some((0.0, 1.0)) };
        let svg = plot.svg();
        assert!(svg.contains("&lt;script&gt;") && !svg.contains("<script>"));
        assert!(!svg.contains("NaN"), "{svg}");
    }
}

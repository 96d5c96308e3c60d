//! One page with everything in it: nothing is fetched, nothing runs.

use super::plot::{Plot, Series, escape};
use super::point::Point;
use super::stats::Summary;
use super::sweep::Pair;
use super::table::{HEAD, cells, compared, letter, name, notes, overhead, servers};

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c2430;--paper:#fff;--soft:#5c6b7f;--line:#dfe4ea;--shade:#e8f1ec}\
@media(prefers-color-scheme:dark){:root{--ink:#e3e8ef;--paper:#14181e;--soft:#93a1b5;--line:#2b333e;--shade:#1d2a24}}\
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1180px;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}p{margin:.4rem 0}.soft{color:var(--soft)}\
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;white-space:nowrap}\
th,td{text-align:right;padding:.3rem .5rem;border-bottom:1px solid var(--line)}th{color:var(--soft);font-weight:500}\
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:1.2rem}\
svg{width:100%;height:auto}text{font-size:12px;fill:var(--soft)}text.t{font-size:13px;font-weight:600;fill:var(--ink)}\
text.x{text-anchor:middle}text.y{text-anchor:end}path{fill:none;stroke-width:2}path.grid{stroke:var(--line);stroke-width:1}\
.shade{fill:var(--shade)}.legend{margin:0 0 0 3.5rem}.k{margin-right:1rem;color:var(--soft)}\
.k:before{content:'';display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.35em;background:currentColor}\
path.s0{stroke:#2a6fdb}circle.s0{fill:#2a6fdb}.k.s0:before{background:#2a6fdb}\
path.s1{stroke:#d9822b}circle.s1{fill:#d9822b}.k.s1:before{background:#d9822b}\
path.s2{stroke:#b3365b}circle.s2{fill:#b3365b}.k.s2:before{background:#b3365b}\
path.s3{stroke:#2c9c69}circle.s3{fill:#2c9c69}.k.s3:before{background:#2c9c69}\
path.s4{stroke:#7b57c8}circle.s4{fill:#7b57c8}.k.s4:before{background:#7b57c8}\
path.s5{stroke:#6b7785}circle.s5{fill:#6b7785}.k.s5:before{background:#6b7785}\
.bad{color:#b3365b}pre{white-space:pre-wrap}";

/// The page of a benchmark.
pub fn page(points: &[Point], comparisons: &[Pair]) -> String {
    let urls = servers(points);
    let first = points.first();
    let what = first.map_or(String::new(), |p| {
        let lengths = format!("{} prompt and {} output tokens", p.input_len, p.output_len);
        let lengths = if p.dataset == "sharegpt-like" { String::new() } else { lengths };
        format!("{} {lengths}, model {}", p.dataset, p.model)
    });
    let mut html = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>lockstep bench</title><style>{STYLE}</style>\
         <h1>lockstep bench</h1><p class=\"soft\">{}<br>{}</p>",
        urls.iter()
            .enumerate()
            .map(|(at, u)| escape(&titled(at, u, &urls)))
            .collect::<Vec<_>>()
            .join(", "),
        escape(&what)
    );
    html.push_str(&rows(points, comparisons, &urls));
    for (pair, ratios) in comparisons {
        html.push_str(&format!("<pre>{}</pre>", escape_lines(&compared(pair, ratios))));
    }
    html.push_str("<h2>By load</h2><div class=\"plots\">");
    by_load(points, &urls).iter().for_each(|p| html.push_str(&framed(p)));
    html.push_str("</div><h2>How times are spread</h2><div class=\"plots\">");
    spread(points, &urls).iter().for_each(|p| html.push_str(&framed(p)));
    html.push_str(
        "</div><h2>The last run of each load, second by second</h2><div class=\"plots\">",
    );
    over_time(points, &urls).iter().for_each(|p| html.push_str(&framed(p)));
    html.push_str("</div><h2>The client itself</h2>");
    for line in overhead(points) {
        html.push_str(&format!("<p class=\"soft\">{}</p>", escape(&line)));
    }
    html.push_str("</html>\n");
    html
}

/// A server's address, with its letter where there are several.
fn titled(at: usize, url: &str, urls: &[&str]) -> String {
    if urls.len() > 1 { format!("{}: {url}", letter(at)) } else { url.to_owned() }
}

fn escape_lines(text: &str) -> String {
    text.lines().map(escape).collect::<Vec<_>>().join("\n")
}

fn framed(plot: &Plot) -> String {
    let svg = plot.svg();
    if svg.is_empty() { svg } else { format!("<div>{svg}</div>") }
}

fn rows(points: &[Point], comparisons: &[Pair], servers: &[&str]) -> String {
    let has_urls = servers.len() > 1;
    let mut html = String::from("<div class=\"scroll\"><table><tr>");
    let server = if has_urls { "<th>server</th>" } else { "" };
    html.push_str(server);
    HEAD.iter().for_each(|h| html.push_str(&format!("<th>{h}</th>")));
    html.push_str("</tr>");
    for point in points {
        html.push_str("<tr>");
        if has_urls {
            let at = servers.iter().position(|url| *url == point.url).map_or(String::new(), letter);
            html.push_str(&format!("<td>{at}</td>"));
        }
        cells(point).iter().for_each(|c| html.push_str(&format!("<td>{}</td>", escape(c))));
        html.push_str("</tr>");
    }
    html.push_str(
        "</table></div><p class=\"soft\">tok/s: output tokens a second over whole runs, with the \
         95% interval of the mean; steady: while the load was as asked; one request: 1,000 over \
         the median TPOT; times are p50 / p90 / p99.</p>",
    );
    for note in notes(points, comparisons) {
        html.push_str(&format!("<p class=\"bad\">{}</p>", escape(&note)));
    }
    html
}

/// Where a load lies on the axis of loads.
fn place(point: &Point) -> f64 {
    point.request_rate.or(point.max_concurrency.map(|c| c as f64)).unwrap_or(0.0)
}

fn by_load(points: &[Point], urls: &[&str]) -> Vec<Plot> {
    let x_name = if points.iter().all(|p| p.request_rate.is_some()) {
        "requests a second"
    } else {
        "requests at once"
    };
    let series = |name: &str, url: &str, of: &dyn Fn(&Point) -> (f64, f64)| {
        let mut points: Vec<(f64, f64, f64)> =
            points.iter().filter(|p| p.url == url).map(|p| (place(p), of(p).0, of(p).1)).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let at = urls.iter().position(|u| *u == url).filter(|_| urls.len() > 1);
        let name = at.map_or(name.to_owned(), |at| format!("{} {name}", letter(at)));
        Series { name, points, has_dots: true }
    };
    let mut throughput = Vec::new();
    for url in urls {
        throughput.push(series("whole runs", url, &|p| {
            let half = p.extra.as_ref().and_then(|e| e.output_throughput.half_width);
            (p.totals.output_throughput, half.unwrap_or(0.0))
        }));
        throughput.push(series("steady", url, &|p| {
            let steady = p.extra.as_ref().and_then(|e| e.steady_output_throughput);
            (steady.map_or(f64::NAN, |s| s.mean), 0.0)
        }));
    }
    let time = |title, of: fn(&Point) -> &Summary| {
        let mut lines = Vec::new();
        for url in urls {
            lines.push(series("p50", url, &|p| (of(p).p50, 0.0)));
            lines.push(series("p90", url, &|p| (of(p).p90, 0.0)));
            lines.push(series("p99", url, &|p| (of(p).p99, 0.0)));
        }
        Plot { title, x_name, y_name: "ms", series: lines, shade: None }
    };
    vec![
        Plot {
            title: "Output tokens a second",
            x_name,
            y_name: "tok/s",
            series: throughput,
            shade: None,
        },
        time("Time to first token", |p| &p.latencies.ttft),
        time("Between tokens (ITL)", |p| &p.latencies.itl),
        time("Time an output token (TPOT)", |p| &p.latencies.tpot),
        time("End to end", |p| &p.latencies.e2e),
    ]
}

fn spread(points: &[Point], servers: &[&str]) -> Vec<Plot> {
    let curve = |title, of: fn(&Point) -> &Summary| {
        let line = |p: &Point| {
            let quantiles = &of(p).quantiles;
            let last = quantiles.len().saturating_sub(1).max(1) as f64;
            let at = |(i, ms): (usize, &f64)| (*ms, 100.0 * i as f64 / last, 0.0);
            let points = quantiles.iter().enumerate().map(at).collect();
            Series { name: name(p, servers), points, has_dots: false }
        };
        Plot {
            title,
            x_name: "ms",
            y_name: "% at most",
            series: points.iter().map(line).collect(),
            shade: None,
        }
    };
    vec![
        curve("Time to first token", |p| &p.latencies.ttft),
        curve("Between tokens (ITL)", |p| &p.latencies.itl),
        curve("End to end", |p| &p.latencies.e2e),
    ]
}

fn over_time(points: &[Point], servers: &[&str]) -> Vec<Plot> {
    let line = |name: String, values: &[u64]| {
        let at = |(i, v): (usize, &u64)| (i as f64 + 0.5, *v as f64, 0.0);
        // A line of one point is not seen.
        let has_dots = values.len() < 2;
        Series { name, points: values.iter().enumerate().map(at).collect(), has_dots }
    };
    let plot = |p: &Point| {
        let e = p.extra.as_ref()?;
        let series = vec![
            line(format!("tokens a second, load {}", name(p, servers)), &e.timeline_tokens),
            line("requests under way".to_owned(), &e.timeline_live),
        ];
        let title = "Tokens a second (steady part shaded)";
        Some(Plot { title, x_name: "s", y_name: "", series, shade: e.timeline_steady_s })
    };
    points.iter().filter_map(plot).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::point::{Extra, Latencies};

    #[test]
    fn the_page_fetches_nothing_and_keeps_names_as_text() {
        let latencies =
            Latencies { ttft: Summary::of(&mut [1.0, 2.0, 3.0]), ..Latencies::default() };
        let extra = Extra {
            timeline_tokens: vec![3, 4],
            timeline_steady_s: Some((0.5, 1.5)),
            ..Extra::default()
        };
        let point = Point {
            url: "http://a:1/<b>".into(),
            model: "<img src=x>".into(),
            max_concurrency: Some(4),
            latencies,
            extra: Some(extra),
            ..Point::default()
        };
        let html = page(&[point], &[]);
        assert!(html.contains("INCONCLUSIVE") && html.matches("<svg").count() >= 6);
        for fetch in ["<script", "<link", "src=\"", "@import", "url(", "<img", "<b>"] {
            assert!(!html.contains(fetch), "{fetch}");
        }
    }
}

//! Pages in Prometheus's text format, as far as coverage reads them.

/// The sum of a metric's series whose labels hold all of `labels` (as they stand: `mode="x"`).
/// `None` where there is no such series.
pub fn sum(page: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let mut found = None;
    for line in page.lines() {
        let Some(rest) = line.strip_prefix(name) else { continue };
        let (tags, value) = match rest.strip_prefix('{') {
            Some(rest) => match rest.rsplit_once('}') {
                Some(parts) => parts,
                None => continue,
            },
            None if rest.starts_with([' ', '\t']) => ("", rest),
            None => continue,
        };
        if !labels.iter().all(|l| tags.contains(l)) {
            continue;
        }
        let number = value.split_whitespace().next().and_then(|v| v.parse::<f64>().ok());
        if let Some(number) = number.filter(|n| n.is_finite()) {
            *found.get_or_insert(0.0) += number;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_summed_by_name_and_label() {
        let page = "# TYPE a gauge\na{m=\"x\",k=\"1\"} 2\na{m=\"y\"} 3.5 1700\nab 9\nb 4\na{m=\"x\"} NaN\na{broken 1";
        assert_eq!(sum(page, "a", &[]), Some(5.5));
        assert_eq!(sum(page, "a", &["m=\"x\""]), Some(2.0));
        assert_eq!(sum(page, "b", &[]), Some(4.0));
        assert_eq!(sum(page, "c", &[]), None);
    }
}

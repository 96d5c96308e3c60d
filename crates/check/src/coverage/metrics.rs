//! Pages in Prometheus's text format, as far as coverage reads them.

/// The values of a metric's series whose labels hold all of `labels` (as they stand: `mode="x"`).
fn values<'a>(
    page: &'a str,
    name: &'a str,
    labels: &'a [&'a str],
) -> impl Iterator<Item = f64> + 'a {
    page.lines().filter_map(move |line| {
        let rest = line.strip_prefix(name)?;
        let (tags, value) = match rest.strip_prefix('{') {
            Some(rest) => rest.rsplit_once('}')?,
            None => ("", rest.strip_prefix([' ', '\t'])?),
        };
        let number = value.split_whitespace().next()?.parse::<f64>().ok()?;
        (number.is_finite() && labels.iter().all(|l| tags.contains(l))).then_some(number)
    })
}

/// Their sum; `None` where there is no such series.
pub fn sum(page: &str, name: &str, labels: &[&str]) -> Option<f64> {
    values(page, name, labels).reduce(|a, b| a + b)
}

/// The largest of them; `None` where there is no such series.
pub fn largest(page: &str, name: &str, labels: &[&str]) -> Option<f64> {
    values(page, name, labels).reduce(f64::max)
}

/// A label's value at the first series of a metric that has it.
pub fn label<'a>(page: &'a str, name: &str, label: &str) -> Option<&'a str> {
    page.lines().find_map(|line| {
        let tags = line.strip_prefix(name)?.strip_prefix('{')?.rsplit_once('}')?.0;
        let at = |tag: &&str| tag.split_once('=').is_some_and(|(name, _)| name == label);
        let value = tags.split(',').find(at)?.split_once('=')?.1;
        value.strip_prefix('"')?.strip_suffix('"')
    })
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
        assert_eq!((largest(page, "a", &[]), largest(page, "c", &[])), (Some(3.5), None));
        assert_eq!((label(page, "a", "k"), label(page, "a", "n")), (Some("1"), None));
    }
}

//! Small arithmetic and tables.

/// The median, or NaN of nothing.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match (sorted.get(middle), sorted.len() % 2) {
        (Some(upper), 0) => sorted.get(middle - 1).map_or(f64::NAN, |lower| f64::midpoint(*lower, *upper)),
        (Some(value), _) => *value,
        (None, _) => f64::NAN,
    }
}

/// Least and greatest.
pub(crate) fn spread(values: &[f64]) -> (f64, f64) {
    values
        .iter()
        .filter(|value| value.is_finite())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| {
            (least.min(*value), most.max(*value))
        })
}

/// The value below which `share` of the sorted values are, or NaN of nothing.
pub(crate) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = (sorted.len() as f64 * share) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

/// Least and greatest, in brackets.
pub(crate) fn range(values: &[f64], digits: usize) -> String {
    let (least, most) = spread(values);
    format!("[{}..{}]", number(least, digits), number(most, digits))
}

/// The geometric mean.
pub(crate) fn mean_ratio(ratios: &[f64]) -> f64 {
    let sum: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
    (sum / ratios.len() as f64).exp()
}

/// With so many digits, or a dash.
pub(crate) fn number(value: f64, digits: usize) -> String {
    if value.is_finite() { format!("{value:.digits$}") } else { "-".to_owned() }
}

/// A size in MiB.
pub(crate) fn mib(kib: u64) -> String {
    format!("{:.1}", kib as f64 / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    #[expect(clippy::float_cmp, reason = "halves are exact")]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, f64::NAN, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }
}

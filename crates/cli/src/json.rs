//! What `--json` prints: times as numbers of seconds, as `jq` and people expect them.

use serde::Serialize;
use serde_json::Value;

/// Any value, with each duration and each time of day (since 1970) as a number of seconds.
pub(crate) fn readable<T: Serialize>(value: &T) -> serde_json::Result<Value> {
    let mut value = serde_json::to_value(value)?;
    in_seconds(&mut value);
    Ok(value)
}

/// `{"secs": 2, "nanos": 500000000}`, which is how serde writes a duration, becomes `2.5`.
fn in_seconds(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if let (2, Some(secs), Some(nanos)) = (
                fields.len(),
                fields.get("secs").and_then(Value::as_f64),
                fields.get("nanos").and_then(Value::as_f64),
            ) {
                *value = Value::from(secs + nanos / 1e9);
                return;
            }
            fields.values_mut().for_each(in_seconds);
        }
        Value::Array(items) => items.iter_mut().for_each(in_seconds),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use soda_types::Timestamp;
    use std::time::Duration;

    #[test]
    fn durations_and_times_are_seconds_wherever_they_stand() {
        let given = [(Duration::from_millis(2500), Some(Timestamp::new(-1, 500_000_000)))];
        assert_eq!(readable(&given).unwrap(), json!([[2.5, -0.5]]));
        let other =
            json!({ "left": { "secs": 9, "nanos": 0 }, "uses": { "secs": 1, "nanos": 2, "more": 3 } });
        let same = json!({ "left": 9.0, "uses": { "secs": 1, "nanos": 2, "more": 3 } });
        assert_eq!(readable(&other).unwrap(), same);
    }
}

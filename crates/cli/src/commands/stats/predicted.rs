//! Messages that consistency cost, beside what the model has for the same work.

use super::show::Reading;
use crate::table::Table;
use crate::units::show_count;
use soda_lab::advise::Consistency;

/// Of a server. Empty while nobody uses it.
pub(super) fn of_server(reading: Reading<'_>) -> Table {
    let mut table = reading.headed(["messages for consistency", "since start"]);
    let clients = reading.total("sessions");
    let Some(all) = Consistency::of(reading.counters, clients) else { return table };
    let lately = reading
        .earlier
        .and_then(|(_, earlier)| Consistency::of(&super::since(earlier, reading.counters), clients));
    let titles = ["measured", "model: all share all, callbacks", "model: all uses ask"];
    let figures = |of: &Consistency| {
        [of.measured, of.shared, of.asking].map(|figure| show_count(figure.round() as u64))
    };
    let now = lately.as_ref().map(figures);
    for (at, (title, total)) in titles.into_iter().zip(figures(&all)).enumerate() {
        reading.row(&mut table, [title.to_owned(), total], now.as_ref().map(|now| now[at].clone()));
    }
    table
}

//! What the numbers of [`super::answer`] come to, in words.

use super::Case;
use crate::LabError;
use crate::figure::{amount, digits};
use soda_model::load::Network::{Multicast, Unicast};
use soda_model::load::Term;

/// One sentence for each question.
pub(super) fn sentences(case: &Case<'_>) -> Result<Vec<String>, LabError> {
    let mut said = vec![unicast(case)];
    if case.term > Term::ZERO && case.sharing.reads() > 0.0 {
        said.push(multicast(case));
        said.extend(subset(case)?);
        said.push(approximation(case));
        said.push(gray_cheriton(case));
        said.extend(terms(case)?);
    }
    said.push(with_data(case)?);
    said.extend(directory(case));
    Ok(said)
}

fn yes(holds: bool) -> &'static str {
    if holds { "yes" } else { "no" }
}

fn sign(is_more: bool) -> &'static str {
    if is_more { ">" } else { "<=" }
}

fn unicast(case: &Case<'_>) -> String {
    let Case { sharing, term, .. } = *case;
    let asking = digits(sharing.sprite_cost());
    if sharing.reads() == 0.0 {
        return "Leases pay (equation 8): no, nobody reads.".to_owned();
    }
    if term == Term::ZERO {
        return format!("Leases pay (equation 8): no, with t = 0 there are none: {asking} messages/s.");
    }
    let pays = sharing.leases_pay(term, Unicast);
    let reason = if sharing.writes() == 0.0 {
        "nobody writes".to_owned()
    } else {
        let ratio = digits(sharing.reads() / sharing.writes());
        format!("R/W = {ratio} {} N - 1 = {}", sign(pays), digits(sharing.clients() - 1.0))
    };
    let leases = digits(sharing.exact_lease_cost(term, Unicast));
    format!("Leases pay (equation 8): {}, {reason}: {leases} messages/s in place of {asking}.", yes(pays))
}

fn multicast(case: &Case<'_>) -> String {
    let Case { sharing, term, .. } = *case;
    let pays = sharing.exact_leases_pay(term, Multicast);
    let (paper, exact) = (sharing.multicast_break_even(term), sharing.exact_multicast_break_even(term));
    let differs = sharing.leases_pay(term, Multicast) != pays;
    format!(
        "By multicast: {}, R = {} {} {}/s (the paper's condition{}: {}/s): {} messages/s.",
        yes(pays),
        digits(sharing.reads()),
        sign(pays),
        digits(exact),
        if differs { ", which says otherwise" } else { "" },
        digits(paper),
        digits(sharing.exact_lease_cost(term, Multicast)),
    )
}

fn subset(case: &Case<'_>) -> Result<Option<String>, LabError> {
    let Case { sharing, writers, .. } = *case;
    if case.parameters.writers.is_none() || sharing.writes() == 0.0 {
        return Ok(None);
    }
    let pays = sharing.subset_leases_pay(writers)?;
    Ok(Some(format!(
        "If only {} of {} write: {}, R/W {} M (N - 1) / N = {}.",
        amount(writers),
        amount(sharing.clients()),
        yes(pays),
        sign(pays),
        digits(writers * (sharing.clients() - 1.0) / sharing.clients()),
    )))
}

fn approximation(case: &Case<'_>) -> String {
    let off = 100.0 * case.sharing.approximation_error(case.term, Unicast).cost;
    match off {
        _ if off.abs() < 0.05 => "Equation 5 is right here, to 0.05 %.".to_owned(),
        _ if off > 0.0 => format!("Equation 5 is {off:.1} % too high here."),
        _ => format!("Equation 5 is {:.1} % too low here.", -off),
    }
}

fn gray_cheriton(case: &Case<'_>) -> String {
    let of = |network| {
        let alpha = digits(case.gray.benefit_factor(network));
        match case.gray.break_even_term(network) {
            Some(secs) => format!("t_c above {} s pays (alpha = {alpha})", digits(secs)),
            None => format!("no term pays (alpha = {alpha})"),
        }
    };
    let client = digits(case.gray.client_term(case.term));
    format!("Gray and Cheriton: {}; by multicast {}; t_c is {client} s.", of(Unicast), of(Multicast))
}

fn terms(case: &Case<'_>) -> Result<Option<String>, LabError> {
    let sharing = case.sharing;
    let (price, dead) = (case.parameters.price, case.parameters.dead);
    if !sharing.leases_pay(case.term, Unicast) {
        return Ok(None);
    }
    let saving = |share| sharing.term_saving(share).map(|term| digits(term.secs()));
    let enough =
        format!("A term of {} s saves 90 % of all that can be saved, {} s 99 %", saving(0.9)?, saving(0.99)?);
    Ok(Some(if price * dead * sharing.writes() == 0.0 {
        format!("{enough}; longer is better, but for waiting writes (--dead, --price).")
    } else {
        let best = sharing.optimal_term(Unicast, price, dead)?;
        format!("{enough}; with writes that wait for the dead {} s is best.", digits(best.secs()))
    }))
}

fn with_data(case: &Case<'_>) -> Result<String, LabError> {
    let Case { sharing, term, .. } = *case;
    let ways = [
        ("asking", case.asking_through()),
        ("leases with write-through", sharing.write_through_cost(term)),
        ("delayed writes", sharing.delayed_write_cost(case.parameters.age)?),
    ];
    Ok(format!("Messages/s with the writes themselves, fewest first: {}.", in_order(ways)))
}

fn directory(case: &Case<'_>) -> Option<String> {
    let Case { tree, term, .. } = case;
    let ways = [
        ("a lease for each", tree.node_cost(*term)),
        ("a deep lease", tree.deep_cost(*term)),
        ("a deep lease with holes", tree.deep_with_holes_cost(*term)),
    ];
    let (files, covered) = (case.parameters.files, tree.covered(*term));
    let [node, deep, holes] = [covered.node, covered.deep, covered.holes].map(|part| digits(100.0 * part));
    (files > 1.0).then(|| {
        let (files, order) = (digits(files), in_order(ways));
        format!(
            "Messages/s of one client and {files} objects, fewest first: {order}; they cover an object {node} % (a lease \
             for each), {deep} % (deep), {holes} % (with holes) of the time."
        )
    })
}

fn in_order(mut ways: [(&str, f64); 3]) -> String {
    ways.sort_by(|left, right| left.1.total_cmp(&right.1));
    ways.map(|(name, cost)| format!("{name} {}", digits(cost))).join(", ")
}

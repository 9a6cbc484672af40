//! Every number of [`super::answer`], group by group.

use super::{Case, Group, Parameters, Quantity, Value};
use crate::LabError;
use soda_lease::table::DeepLeases;
use soda_model::load::Network::{Multicast, Unicast};
use soda_model::load::Term;

const MESSAGES: &str = "messages/s";
const SECONDS: &str = "s";
const PERCENT: &str = "%";

/// Name, value, unit, meaning.
type Row = (&'static str, Value, &'static str, &'static str);

impl Case<'_> {
    pub(super) fn quantities(&self) -> Result<Vec<Quantity>, LabError> {
        let mut all = Vec::new();
        for group in Group::ALL {
            let rows = match group {
                Group::File => self.file(),
                Group::Conditions => self.conditions()?,
                Group::GrayCheriton => self.gray_cheriton(),
                Group::Variants => self.variants()?,
                Group::Directory => self.directory()?,
                Group::Terms => self.terms()?,
            };
            let quantity = |(name, value, unit, meaning)| Quantity { group, name, value, unit, meaning };
            all.extend(rows.into_iter().map(quantity));
        }
        Ok(all)
    }

    fn file(&self) -> Vec<Row> {
        let Case { sharing, term, .. } = *self;
        let error = |network| 100.0 * sharing.approximation_error(term, network).cost;
        let exact = |network| sharing.exact_lease_cost(term, network);
        vec![
            (
                "asking",
                sharing.sprite_cost().into(),
                MESSAGES,
                "asking at each read: 2NR (SODA, section 3.4)",
            ),
            (
                "lease_length",
                sharing.lease_length(term).into(),
                SECONDS,
                "E(L): until term or write end a lease (SODA, section 3)",
            ),
            (
                "exact_lease_length",
                sharing.exact_lease_length(term).into(),
                SECONDS,
                "the same of leases that really last t",
            ),
            ("holders", sharing.holders(term).into(), "clients", "S: those that have a lease (eq. 2)"),
            ("exact_holders", sharing.exact_holders(term).into(), "clients", "the same with the exact E(L)"),
            ("read_cost", sharing.read_cost(term).into(), MESSAGES, "C_R: leases given to readers (eq. 3)"),
            (
                "write_cost",
                sharing.write_cost(term, Unicast).into(),
                MESSAGES,
                "C_W: leases recalled for writers (eq. 4)",
            ),
            ("paper", sharing.lease_cost(term, Unicast).into(), MESSAGES, "C_total (eq. 5)"),
            ("exact", exact(Unicast).into(), MESSAGES, "the same with the exact E(L)"),
            ("approximation_error", error(Unicast).into(), PERCENT, "by how much eq. 5 is too high"),
            (
                "paper_multicast",
                sharing.lease_cost(term, Multicast).into(),
                MESSAGES,
                "C_total with multicast (eq. 5)",
            ),
            ("multicast", exact(Multicast).into(), MESSAGES, "the same with the exact E(L)"),
            (
                "multicast_error",
                error(Multicast).into(),
                PERCENT,
                "by how much eq. 5 is too high with multicast",
            ),
        ]
    }

    fn conditions(&self) -> Result<Vec<Row>, LabError> {
        let Case { sharing, term, writers, .. } = *self;
        let shortest = sharing.break_even_term(Multicast).map_or(f64::INFINITY, Term::secs);
        Ok(vec![
            ("leases_pay", sharing.leases_pay(term, Unicast).into(), "", "R/W > N - 1 (eq. 7 and 8)"),
            (
                "break_even_clients",
                sharing.break_even_clients().into(),
                "clients",
                "from so many on they do not: (R + W)/W",
            ),
            ("multicast_pays", sharing.leases_pay(term, Multicast).into(), "", "with multicast (eq. 6)"),
            (
                "multicast_break_even",
                sharing.multicast_break_even(term).into(),
                "reads/s",
                "R has to be more for that (after eq. 8)",
            ),
            (
                "exact_multicast_pays",
                sharing.exact_leases_pay(term, Multicast).into(),
                "",
                "eq. 6 with the exact E(L)",
            ),
            (
                "exact_multicast_break_even",
                sharing.exact_multicast_break_even(term).into(),
                "reads/s",
                "R has to be more for that",
            ),
            (
                "multicast_break_even_term",
                shortest.into(),
                SECONDS,
                "t has to be more for that (infinite: no term does)",
            ),
            (
                "subset_pays",
                (term > Term::ZERO && sharing.subset_leases_pay(writers)?).into(),
                "",
                "only M write: R/W > M(N - 1)/N",
            ),
        ])
    }

    fn gray_cheriton(&self) -> Vec<Row> {
        let Case { gray, term, .. } = self;
        let shortest = |network| gray.break_even_term(network).unwrap_or(f64::INFINITY);
        vec![
            ("client_term", gray.client_term(*term).into(), SECONDS, "t_c: what is left of t at the client"),
            (
                "gray_cheriton",
                gray.cost(*term, Unicast).into(),
                MESSAGES,
                "formula 1, but by unicast: 2(S - 1) for an approval",
            ),
            (
                "gray_cheriton_multicast",
                gray.cost(*term, Multicast).into(),
                MESSAGES,
                "formula 1: S for an approval",
            ),
            (
                "gray_cheriton_delay",
                gray.delay(*term).into(),
                SECONDS,
                "formula 2: added to each operation (multicast)",
            ),
            (
                "benefit_factor",
                gray.benefit_factor(Unicast).into(),
                "",
                "alpha by unicast: R/(S - 1)W; above 1 leases can pay",
            ),
            ("benefit_factor_multicast", gray.benefit_factor(Multicast).into(), "", "alpha: 2R/SW"),
            (
                "gray_cheriton_break_even",
                shortest(Unicast).into(),
                SECONDS,
                "t_c has to be more: 1/R(alpha - 1), by unicast",
            ),
            (
                "gray_cheriton_break_even_multicast",
                shortest(Multicast).into(),
                SECONDS,
                "the same with multicast",
            ),
        ]
    }

    fn variants(&self) -> Result<Vec<Row>, LabError> {
        let Case { sharing, term, session, writers, parameters, .. } = *self;
        let renewed = sharing.renewed_on_use(term);
        let files = parameters.files;
        Ok(vec![
            (
                "subset",
                sharing.subset_cost(writers, term, Unicast)?.into(),
                MESSAGES,
                "one file, only M of the N write",
            ),
            (
                "kept",
                sharing.kept_lease_cost(term).into(),
                MESSAGES,
                "one file, who writes keeps its lease, which the next reader has lowered (Soda)",
            ),
            ("renewed", renewed.cost.into(), MESSAGES, "one file, leases are renewed if they were used"),
            (
                "renewed_waits",
                (100.0 * renewed.waiting_reads).into(),
                PERCENT,
                "... reads that wait for the server then",
            ),
            (
                "node_leases",
                (files * sharing.exact_lease_cost(term, Unicast)).into(),
                MESSAGES,
                "k files, a lease of term t for each",
            ),
            (
                "session",
                sharing.session_lease_cost(files, session, Unicast)?.into(),
                MESSAGES,
                "k files, leases that last as long as a session of term T",
            ),
            (
                "asking_through",
                self.asking_through().into(),
                MESSAGES,
                "one file: asking, and each write (2)",
            ),
            (
                "through",
                sharing.write_through_cost(term).into(),
                MESSAGES,
                "one file: leases, and each write (2)",
            ),
            (
                "delayed",
                sharing.delayed_write_cost(parameters.age)?.into(),
                MESSAGES,
                "one file: delayed writes, data included",
            ),
            (
                "delayed_subset",
                sharing.delayed_subset_cost(writers, parameters.age)?.into(),
                MESSAGES,
                "the same, only M of the N write",
            ),
        ])
    }

    fn directory(&self) -> Result<Vec<Row>, LabError> {
        let Case { tree, term, .. } = self;
        let covered = tree.covered(*term);
        let after = match DeepLeases::DEFAULT_ON {
            DeepLeases::On { after, .. } => f64::from(after),
            DeepLeases::Off => self.parameters.files,
        };
        Ok(vec![
            ("tree_node", tree.node_cost(*term).into(), MESSAGES, "a lease for each object"),
            (
                "tree_deep",
                tree.deep_cost(*term).into(),
                MESSAGES,
                "a deep lease, lost as a whole (Zhang and Honeyman)",
            ),
            (
                "tree_holes",
                tree.deep_with_holes_cost(*term).into(),
                MESSAGES,
                "a deep lease that gets holes (Soda)",
            ),
            (
                "tree_node_covered",
                (100.0 * covered.node).into(),
                PERCENT,
                "of the time an object has a lease of its own",
            ),
            (
                "tree_deep_covered",
                (100.0 * covered.deep).into(),
                PERCENT,
                "... is under the deep lease; less: false sharing",
            ),
            (
                "tree_holes_covered",
                (100.0 * covered.holes).into(),
                PERCENT,
                "... is under it, and in no hole",
            ),
            ("tree_node_first", tree.first_node_cost().into(), "messages", "to begin with: 2k"),
            (
                "tree_deep_first",
                tree.first_deep_cost(after)?.into(),
                "messages",
                "to begin with, if deep comes after 16: 2 min(k, 17)",
            ),
        ])
    }

    fn terms(&self) -> Result<Vec<Row>, LabError> {
        let Case { sharing, term, session, parameters, .. } = *self;
        let Parameters { dead, price, .. } = *parameters;
        Ok(vec![
            (
                "term_90",
                sharing.term_saving(0.9)?.secs().into(),
                SECONDS,
                "saves 90 % of what an infinite one saves",
            ),
            ("term_99", sharing.term_saving(0.99)?.secs().into(), SECONDS, "saves 99 %"),
            (
                "write_delay",
                sharing.write_delay(term, dead)?.into(),
                SECONDS,
                "mean wait of a write for dead readers (f), term t",
            ),
            (
                "write_delay_session",
                sharing.write_delay_of_sessions(session, dead)?.into(),
                SECONDS,
                "the same with sessions of term T (Soda)",
            ),
            (
                "optimal_term",
                sharing.optimal_term(Unicast, price, dead)?.secs().into(),
                SECONDS,
                "messages and waiting (--price) cost least",
            ),
        ])
    }

    /// Messages per second without leases, writes included.
    pub(super) fn asking_through(&self) -> f64 {
        self.sharing.sprite_cost() + 2.0 * self.sharing.clients() * self.sharing.writes()
    }
}

//! The paper's own numbers.

use super::*;
use Network::{Multicast, Unicast};

/// Figure 2: "5 clients requesting, on average, one write in each 10 seconds and two reads per second".
const FIGURE_2: Sharing = Sharing { clients: 5.0, reads: 2.0, writes: 0.1 };

/// Figure 3: leases pay while N < 41, so R/W = 40.
fn figure_3(clients: f64) -> Sharing {
    Sharing { clients, reads: 2.0, writes: 0.05 }
}

fn close(left: f64, right: f64) {
    assert!((left - right).abs() <= 1e-9 * right.abs().max(1.0), "{left} is not {right}");
}

/// The formulas as they are printed, for terms that divide nothing by zero.
fn printed(sharing: Sharing, t: f64, network: Network) -> (f64, f64, f64, f64) {
    let Sharing { clients: n, reads: r, writes: w } = sharing;
    let s = n * r * t / (1.0 + r * t + n * w * t);
    let read = 2.0 * n * r * (1.0 + n * w * t) / (1.0 + r * t + n * w * t);
    let write = match network {
        Multicast => n * w + s * (n - 1.0) * w,
        Unicast => 2.0 * s * (n - 1.0) * w,
    };
    (s, read, write, read + write)
}

#[test]
fn equal_to_the_printed_equations() {
    for t in [0.1, 1.0, 2.0, 10.0, 60.0, 3600.0] {
        for network in [Unicast, Multicast] {
            for sharing in [FIGURE_2, figure_3(1.0), figure_3(40.0), figure_3(80.0)] {
                let (s, read, write, total) = printed(sharing, t, network);
                close(sharing.holders(Term(t)), s);
                close(sharing.read_cost(Term(t)), read);
                close(sharing.write_cost(Term(t), network), write);
                close(sharing.lease_cost(Term(t), network), total);
            }
        }
    }
}

#[test]
fn figure_2_numbers_worked_by_hand() {
    // t = 20: 1 + Rt + NWt = 1 + 40 + 10 = 51; S = 200/51; C_R = 20 * 11/51; C_W = 2 * S * 4 * 0.1.
    close(FIGURE_2.holders(Term(20.0)), 200.0 / 51.0);
    close(FIGURE_2.read_cost(Term(20.0)), 220.0 / 51.0);
    close(FIGURE_2.write_cost(Term(20.0), Unicast), 160.0 / 51.0);
    close(FIGURE_2.lease_cost(Term(20.0), Unicast), 380.0 / 51.0);
    close(FIGURE_2.sprite_cost(), 20.0);
}

#[test]
fn figure_2_longer_leases_cost_less_and_sixty_seconds_gain_little_over_twenty() {
    let cost = |t| FIGURE_2.lease_cost(Term(t), Unicast);
    let terms = [0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 600.0, f64::INFINITY];
    assert!(terms.windows(2).all(|pair| cost(pair[1]) < cost(pair[0])), "no optimal term: longer is better");
    let gained_by_20 = cost(0.0) - cost(20.0);
    let gained_by_60_more = cost(20.0) - cost(60.0);
    assert!(gained_by_60_more < 0.02 * gained_by_20, "{gained_by_60_more} of {gained_by_20}");
}

#[test]
fn term_zero_is_sprite_and_infinite_is_a_callback() {
    close(FIGURE_2.lease_cost(Term::ZERO, Unicast), FIGURE_2.sprite_cost());
    assert_eq!(FIGURE_2.holders(Term::ZERO), 0.0);
    // t -> infinite: S = NR / (R + NW).
    close(FIGURE_2.holders(Term::INFINITE), 5.0 * 2.0 / 2.5);
    for network in [Unicast, Multicast] {
        assert!(!FIGURE_2.leases_pay(Term::ZERO, network) && !FIGURE_2.exact_leases_pay(Term::ZERO, network));
    }
    let never_written = Sharing { writes: 0.0, ..FIGURE_2 };
    close(never_written.holders(Term::INFINITE), 5.0);
    close(never_written.lease_cost(Term::INFINITE, Unicast), 0.0);
    close(never_written.multicast_break_even(Term::INFINITE), 0.0);
    let idle = Sharing { reads: 0.0, writes: 0.0, ..FIGURE_2 };
    assert_eq!(idle.break_even_clients(), f64::INFINITY);
    assert!(!idle.leases_pay(Term::INFINITE, Unicast) && !idle.leases_pay(Term::INFINITE, Multicast));
    let never_read = Sharing { reads: 0.0, ..FIGURE_2 };
    close(never_read.lease_cost(Term::INFINITE, Unicast), 0.0);
}

#[test]
fn figure_3_break_even_is_at_41_clients_whatever_the_term() {
    close(figure_3(1.0).break_even_clients(), 41.0);
    for t in [0.5, 5.0, 20.0, 60.0, f64::INFINITY] {
        let ratio = |n| figure_3(n).lease_cost(Term(t), Unicast) / figure_3(n).sprite_cost();
        assert!(ratio(40.0) < 1.0 && ratio(42.0) > 1.0, "term {t}: {} {}", ratio(40.0), ratio(42.0));
        close(ratio(41.0), 1.0);
        assert!(figure_3(40.0).leases_pay(Term(t), Unicast));
        assert!(!figure_3(41.0).leases_pay(Term(t), Unicast));
    }
}

#[test]
fn figure_3_longer_terms_help_below_41_and_hurt_above() {
    let cost = |n, t| figure_3(n).lease_cost(Term(t), Unicast);
    assert!(cost(40.0, 20.0) < cost(40.0, 5.0));
    assert!(cost(60.0, 20.0) > cost(60.0, 5.0));
}

#[test]
fn the_conditions_are_the_cost_inequalities_6_and_7() {
    for clients in [1.0, 2.0, 6.0, 20.0, 100.0] {
        for reads in [0.01, 0.1, 0.5, 1.0, 2.0, 10.0, 100.0] {
            for writes in [0.01, 0.1, 1.0] {
                for t in [0.1, 1.0, 20.0, 1000.0] {
                    let sharing = Sharing { clients, reads, writes };
                    for network in [Unicast, Multicast] {
                        let difference = sharing.sprite_cost() - sharing.lease_cost(Term(t), network);
                        if difference.abs() > 1e-9 {
                            let pays = sharing.leases_pay(Term(t), network);
                            assert_eq!(pays, difference > 0.0, "{sharing:?} {t} {network:?}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn multicast_pays_from_about_four_fifths_of_n() {
    // "at least one write every two lease periods, so NWt > 1/2 [...] N >= 6 [...] if R/W > 0.8 N": the worst case is
    // the corner, where the exact factor is (1 + sqrt 5) / 4 = 0.809.
    let corner = Sharing { clients: 6.0, reads: 0.0, writes: 1.0 };
    close(corner.multicast_break_even(Term(1.0 / 12.0)) / 6.0, (1.0 + 5.0_f64.sqrt()) / 4.0);
    for clients in [6.0, 10.0, 50.0, 500.0] {
        let sharing = Sharing { clients, reads: 0.81 * clients, writes: 1.0 };
        assert!(sharing.leases_pay(Term(0.5 / clients), Multicast), "N = {clients}");
    }
}

use super::*;
use crate::figure::Scale::{Linear, Logarithmic};
use proptest::prelude::*;
use soda_model::load::LARGEST;

fn value(parameters: &Parameters, name: &str) -> f64 {
    let all = quantities(parameters).expect("right");
    match found(&all, name).expect("known").value {
        Value::Number(number) => number,
        _ => panic!("{name} is no number"),
    }
}

fn refused(parameters: Parameters) -> String {
    answer(&parameters).expect_err("wrong").to_string()
}

#[test]
fn the_papers_figure_2_at_twenty_seconds() {
    let parameters = Parameters { term: 20.0, ..Parameters::default() };
    assert!((value(&parameters, "paper") - 380.0 / 51.0).abs() < 1e-9);
    assert_eq!(value(&parameters, "asking"), 20.0);
    assert_eq!(value(&parameters, "break_even_clients"), 21.0);
}

#[test]
fn one_client_is_compared_with_itself_in_a_directory() {
    // With one object all three are the same protocol, whatever the other clients do.
    let one = Parameters::default();
    assert!((value(&one, "tree_node") - value(&one, "tree_deep")).abs() < 1e-9);
    let many = Parameters { files: 100.0, conflicts: Some(0.01), uses: Some(0.5), ..one };
    assert!(value(&many, "tree_deep") < value(&many, "tree_node"));
    assert!(value(&many, "tree_deep_covered") > value(&many, "tree_node_covered"));
}

#[test]
fn it_is_said_in_words_whether_leases_pay() {
    let said = |parameters: Parameters| answer(&parameters).expect("right").verdict.join("\n");
    let of = |reads: f64, writes: f64| Parameters { reads, writes, ..Parameters::default() };
    let pays = said(of(2.0, 0.1));
    assert!(pays.starts_with("Leases pay (equation 8): yes, R/W = 20.0 > N - 1 = 4.00: "), "{pays}");
    assert!(pays.contains("By multicast: yes, R = 2.00 > ") && pays.contains("% too high here"), "{pays}");
    let hopeless = said(of(0.1, 1.0));
    assert!(
        hopeless.starts_with("Leases pay (equation 8): no, R/W = 0.1000 <= N - 1 = 4.00: "),
        "{hopeless}"
    );
    assert!(hopeless.contains("By multicast: no") && hopeless.contains("% too low here"), "{hopeless}");
    assert!(said(of(1.0, 0.0)).contains("yes, nobody writes"));
    assert!(said(of(0.0, 0.0)).contains("no, nobody reads"));
    assert!(said(Parameters { term: 0.0, ..Parameters::default() }).contains("with t = 0 there are none"));
    assert!(said(Parameters { writers: Some(1.0), ..of(0.1, 0.1) }).contains("If only 1 of 5 write: yes"));
    let tree = Parameters { files: 100.0, conflicts: Some(0.01), ..Parameters::default() };
    let (tree, best) = (said(tree), "one client and 100 objects, fewest first: a deep lease ");
    assert!(tree.contains(best) && tree.contains("they cover an object 95.0 %"), "{tree}");
    let dying = Parameters { dead: 0.1, price: 10.0, ..Parameters::default() };
    assert!(said(dying).contains("for the dead") && said(dying).contains("s is best"), "{}", said(dying));
}

#[test]
fn json_and_csv_have_a_word_for_infinite() {
    let callback = answer(&Parameters { term: f64::INFINITY, ..Parameters::default() }).expect("right");
    let json = serde_json::to_value(&callback).expect("right");
    let of = |name: &str| {
        let all = json["quantities"].as_array().expect("a list").iter();
        all.clone().find(|quantity| quantity["name"] == name).expect("known")["value"].clone()
    };
    assert_eq!(of("client_term"), "inf");
    assert_eq!(of("leases_pay"), true);
    assert_eq!(of("asking"), 20.0);
    assert!(json["verdict"][0].as_str().expect("a sentence").starts_with("Leases pay"));
    let csv = callback.table().csv();
    assert!(
        csv.contains("gray_cheriton,client_term,inf,s,") && csv.contains("conditions,leases_pay,yes,,"),
        "{csv}"
    );
    assert!(!callback.to_string().contains("null"));
}

#[test]
fn all_digits_are_written_but_no_rows_of_zeros() {
    let texts =
        [0.1, 20.0, 0.0, 1e300, -2.5e-9, f64::INFINITY].map(|number| Value::Number(number).to_string());
    assert_eq!(texts, ["0.1", "20", "0", "1e300", "-2.5e-9", "inf"]);
}

#[test]
fn what_has_no_meaning_is_refused_in_words() {
    let good = Parameters::default();
    for (wrong, words) in [
        (Parameters { sharers: Some(9.0), ..good }, "S is 9 of N = 5 clients"),
        (Parameters { writers: Some(6.0), ..good }, "6 of 5 clients write"),
        (Parameters { clients: 1e300, ..good }, "N is 1e300: the model computes with 1e12 at most"),
        (Parameters { session: -1.0, ..good }, "T, the session's term, is -1"),
        (Parameters { files: 0.0, ..good }, "k is 0: there has to be at least one"),
        (Parameters { price: f64::NAN, ..good }, "price is NaN"),
        (Parameters { processing: -1.0, ..good }, "m_proc is -1"),
        (Parameters { uses: Some(f64::INFINITY), ..good }, "u is inf"),
        (Parameters { conflicts: Some(-0.5), ..good }, "c is -0.5"),
    ] {
        assert!(refused(wrong).contains(words), "{}", refused(wrong));
    }
}

#[test]
fn some_can_be_chosen() {
    let names = ["exact", "tree_holes"].map(str::to_owned);
    let chosen = answer(&Parameters::default()).expect("right").only(&names).expect("known");
    assert_eq!(chosen.quantities.len(), 2);
    let none = answer(&Parameters::default()).expect("right").only(&["cost".to_owned()]);
    let said = none.expect_err("unknown").to_string();
    assert!(said.contains("no quantity `cost`; there are: asking, lease_length"), "{said}");
}

#[test]
fn sweeps_are_read() {
    let sweep = Sweep::parse("n=1..5", Linear).expect("right");
    assert_eq!(sweep.values(60), [1.0, 2.0, 3.0, 4.0, 5.0]);
    for wrong in ["t", "t=1", "x=1..2", "t=5..1", "t=a..b", "t=0..inf", "n=1..1", "n=1.2..1.8"] {
        assert!(Sweep::parse(wrong, Linear).is_err(), "{wrong}");
    }
    let zero = Sweep::parse("n=0..3", Linear).expect("right").table(&Parameters::default(), &[]);
    assert!(zero.is_err_and(|error| error.to_string().contains("at least one client")));
    let many = Sweep::parse("n=1..1e6", Linear).expect("right").values(60);
    assert!(many.len() == 61 && many.iter().all(|n| n.fract() == 0.0), "{many:?}");
    let wide = Sweep::parse("t=0.1..1000", Logarithmic).expect("right").values(60);
    assert!((wide[15] - 1.0).abs() < 1e-9 && wide[60] == 1000.0 && wide.len() == 61, "{wide:?}");
    let crowds = Sweep::parse("n=1..1000", Logarithmic).expect("right").values(60);
    assert!(crowds.windows(2).all(|pair| pair[0] < pair[1] && pair[1].fract() == 0.0), "{crowds:?}");
    assert!(Sweep::parse("t=0..10", Logarithmic).is_err());
}

#[test]
fn every_parameter_can_be_swept_shown_and_drawn() {
    for (range, curves) in [
        ("n=1..10", 6),
        ("r=0..4", 6),
        ("w=0..1", 6),
        ("t=0..60", 6),
        ("session=1..60", 2),
        ("writers=0..5", 3),
        ("sharers=1..5", 4),
        ("k=1..100", 2),
        ("u=0..2", 3),
        ("c=0..2", 3),
        ("f=0..1", 2),
        ("price=0..100", 1),
        ("age=0..30", 3),
    ] {
        let sweep = Sweep::parse(range, Linear).expect("right");
        // Few points: what counts is that there is something, and that the parameter changes it.
        let base = Parameters { dead: 0.1, files: 10.0, ..Parameters::default() };
        let table = sweep.table(&base, &[]).expect("right");
        assert!(table.rows.iter().all(|row| row.len() == table.head.len()), "{range}");
        let columns = |row: &[Value]| row[1..].to_vec();
        let (first, last) = (&table.rows[0], &table.rows[table.rows.len() - 1]);
        assert_ne!(columns(first), columns(last), "{range} changes nothing");
        let figure = sweep.figure(&base, &[]).expect("right");
        assert_eq!(figure.series.len(), curves, "{range}");
        // As many points at least as rows: curves are finer.
        assert!(figure.series.iter().all(|series| series.points.len() >= table.rows.len()), "{range}");
        let short = sweep.short_table(&base, &[]).expect("right");
        assert_eq!((short.head.len(), short.rows.len()), (curves + 1, table.rows.len()), "{range}");
        assert!(short.rows.iter().flatten().all(|cell| cell.rounded().len() <= 8), "{range}: {short}");
    }
}

#[test]
fn programs_get_numbers_with_all_digits_and_true_or_false_along_a_sweep() {
    let sweep = Sweep::parse("n=1..80", Linear).expect("right");
    let show = ["exact", "leases_pay"].map(str::to_owned);
    let table = sweep.table(&Parameters::default(), &show).expect("right");
    let json = serde_json::to_value(&table).expect("written");
    let row = |clients: f64| {
        let at = Parameters { clients, ..Parameters::default() };
        let found = quantities(&at).expect("right");
        let exact = found.iter().find(|quantity| quantity.name == "exact").expect("there is one");
        let Value::Number(exact) = exact.value else { panic!("{exact:?}") };
        (
            exact,
            json["rows"]
                .as_array()
                .expect("rows")
                .iter()
                .find(|row| row[0] == clients)
                .expect("a row")
                .clone(),
        )
    };
    let (exact, few) = row(5.0);
    assert_eq!(few, serde_json::json!([5.0, exact, true]));
    assert!(table.csv().contains(&format!("\n5,{exact},yes\n")), "{}", table.csv());
    assert_eq!(row(80.0).1[2], false);
}

#[test]
fn a_figure_has_one_unit_and_does_not_name_what_changes() {
    let sweep = Sweep::parse("t=0..60", Linear).expect("right");
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let figure = |shown: &[&str]| sweep.figure(&Parameters::default(), &names(shown));
    assert_eq!(figure(&["holders", "exact_holders"]).expect("right").y.label, "clients");
    let usual = figure(&[]).expect("right");
    // Session leases do not depend on t.
    let session = usual.series.iter().find(|series| series.name == "session leases").expect("drawn");
    assert_eq!(session.points[0].1, session.points[300].1);
    let title = usual.title;
    assert!(title.contains("N = 5") && !title.contains("t ="), "{title}");
    for (shown, words) in [
        (&["exact", "write_delay"][..], "exact is in messages/s, write_delay in seconds"),
        (&["leases_pay"], "yes or no"),
        (&["nothing"], "no quantity `nothing`"),
    ] {
        let error = figure(shown).expect_err("wrong").to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// Numbers of things, from one on.
fn counts() -> impl Strategy<Value = f64> {
    prop_oneof![Just(1.0), Just(1.5), Just(2.0), Just(1e6), Just(LARGEST), (1_u32..200).prop_map(f64::from)]
}

/// From nothing, and next to nothing, to all that is allowed.
fn amounts() -> impl Strategy<Value = f64> {
    let edges = [0.0, f64::from_bits(1), f64::MIN_POSITIVE, 1e-300, 1e-160, 1e-9, 1.0, 1e6, LARGEST];
    let any_size = (-12.0..12.0_f64).prop_map(|power| 10_f64.powf(power));
    prop_oneof![3 => prop::sample::select(edges.to_vec()), 2 => 0.0..5.0_f64, 1 => any_size]
}

fn times() -> impl Strategy<Value = f64> {
    prop_oneof![1 => Just(f64::INFINITY), 4 => amounts()]
}

fn parts() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.0), Just(f64::from_bits(1)), Just(1e-12), Just(1.0), 0.0..=1.0_f64]
}

prop_compose! {
    fn valid()(
        clients in counts(), reads in amounts(), writes in amounts(), term in times(),
        session in times(), files in counts(), uses in amounts(), conflicts in amounts(),
        (sharing, writing) in (parts(), parts()), dead in parts(), price in amounts(), age in times(),
        (propagation, processing, uncertainty) in (amounts(), amounts(), amounts()),
    ) -> Parameters {
        Parameters {
            clients, reads, writes, term, session, files, dead, price, age, propagation, processing, uncertainty,
            uses: Some(uses),
            conflicts: Some(conflicts),
            writers: Some(clients * writing),
            sharers: Some(1.0 + (clients - 1.0) * sharing),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn whatever_is_valid_has_an_answer_in_numbers(parameters in valid()) {
        let Answer { quantities, verdict } = answer(&parameters).expect("valid");
        for Quantity { name, value, unit, .. } in quantities {
            let number = match value {
                Value::Number(number) => number,
                Value::Holds(_) => continue,
                other => return Err(TestCaseError::fail(format!("{name} is {other:?} of {parameters:?}"))),
            };
            // Errors of an approximation have both signs.
            let right = if name.ends_with("_error") { number.is_finite() } else { number >= 0.0 };
            prop_assert!(right, "{name} is {number} of {parameters:?}");
            prop_assert!(unit != "%" || number <= 100.0 * (1.0 + 1e-12), "{name} is {number} %");
        }
        for sentence in verdict {
            prop_assert!(!sentence.contains("NaN"), "{sentence}");
        }
    }
}

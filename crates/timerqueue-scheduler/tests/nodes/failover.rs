//! A standby takes over: commits wait for it (`synchronous_standby_names`), so it has all that was
//! answered.

use std::time::Duration;

use crate::database::Database;
use crate::network::{Network, address};
use crate::{History, pause};

#[test]
fn l15_a_standby_takes_over() {
    let times = std::env::var("TIMERQUEUE_NODES").map_or(1, |times| times.parse().unwrap());
    for _ in 0..times {
        let Some(network) = Network::new(&["db1", "db2", "n1", "n2", "n3"]) else { return };
        let Some(primary) = Database::start(&network, "db1") else { return };
        let standby = Database::standby_of(&primary, "db2");
        let hosts = format!("host={},{} user=test dbname=postgres sslmode=disable", address("db1"), address("db2"));
        let options = "target_session_attrs=read-write connect_timeout=2";
        let mut history = History::start_at("fail over", &network, &primary, format!("{hosts} {options}"), [""; 3]);
        history.trouble("", |history| {
            primary.down("immediate");
            standby.promote();
            history.database = &standby;
        });
        pause(Duration::from_millis(1_500));
        history.finish();
    }
}

//! The serialized form of a schedule. [`Schedule`] documents it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::de::{DeserializeSeed, Error as _};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::builder::{ScheduleBuilder, Spec};
use crate::instant::{duration_from_text, duration_to_text, from_text, to_text};
use crate::{Rule, Schedule, ScheduleError, Zones};

/// The fields, in their stable order.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename = "Schedule")]
struct Form {
    every: Option<String>,
    fixed_delay: Option<String>,
    cron: Option<String>,
    rule: Option<String>,
    zone: Option<String>,
    from: Option<String>,
    until: Option<String>,
    times: Option<u64>,
    key: Option<String>,
    spread: Option<String>,
    jitter: Option<String>,
}

impl Form {
    fn of(builder: &ScheduleBuilder) -> Self {
        let window = |window: Duration| (!window.is_zero()).then(|| duration_to_text(window));
        let mut form = Self {
            zone: builder.zone.clone(),
            from: builder.from.map(to_text),
            until: builder.until.map(to_text),
            times: builder.times,
            key: builder.key.clone(),
            spread: window(builder.spread),
            jitter: window(builder.jitter),
            ..Self::default()
        };
        match &builder.spec {
            Spec::Every(period) => form.every = Some(duration_to_text(*period)),
            Spec::FixedDelay(delay) => form.fixed_delay = Some(duration_to_text(*delay)),
            Spec::Cron(line) => form.cron = Some(line.clone()),
            Spec::Rule(name, _) => form.rule = Some(name.clone()),
        }
        form
    }

    fn builder(self, loader: &Loader) -> Result<ScheduleBuilder, ScheduleError> {
        let spec = match (self.every, self.fixed_delay, self.cron, self.rule) {
            (Some(text), None, None, None) => Spec::Every(duration(text)?),
            (None, Some(text), None, None) => Spec::FixedDelay(duration(text)?),
            (None, None, Some(line), None) => Spec::Cron(line),
            (None, None, None, Some(name)) => match loader.rules.get(&name) {
                Some(rule) => Spec::Rule(name, Arc::clone(rule)),
                None => return Err(ScheduleError::UnknownRule { name }),
            },
            _ => return Err(ScheduleError::NotOneKind),
        };
        let mut builder = ScheduleBuilder::new(spec);
        builder.zone = self.zone;
        builder.from = self.from.map(instant).transpose()?;
        builder.until = self.until.map(instant).transpose()?;
        builder.times = self.times;
        builder.key = self.key;
        builder.spread = self.spread.map(duration).transpose()?.unwrap_or_default();
        builder.jitter = self.jitter.map(duration).transpose()?.unwrap_or_default();
        Ok(builder)
    }

    /// Only the fields that are present.
    fn serialize_as_map<S: Serializer>(self, serializer: S) -> Result<S::Ok, S::Error> {
        let texts = [
            ("every", self.every),
            ("fixed_delay", self.fixed_delay),
            ("cron", self.cron),
            ("rule", self.rule),
            ("zone", self.zone),
            ("from", self.from),
            ("until", self.until),
        ];
        let more = [("key", self.key), ("spread", self.spread), ("jitter", self.jitter)];
        let mut map = serializer.serialize_map(None)?;
        for (field, text) in texts.into_iter().filter_map(|(field, text)| Some((field, text?))) {
            map.serialize_entry(field, &text)?;
        }
        if let Some(times) = self.times {
            map.serialize_entry("times", &times)?;
        }
        for (field, text) in more.into_iter().filter_map(|(field, text)| Some((field, text?))) {
            map.serialize_entry(field, &text)?;
        }
        map.end()
    }
}

fn instant(text: String) -> Result<SystemTime, ScheduleError> {
    from_text(&text).ok_or(ScheduleError::InvalidInstant { text })
}

fn duration(text: String) -> Result<Duration, ScheduleError> {
    duration_from_text(&text).ok_or(ScheduleError::InvalidDuration { text })
}

impl Serialize for Schedule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = Form::of(&self.spec);
        if serializer.is_human_readable() { form.serialize_as_map(serializer) } else { form.serialize(serializer) }
    }
}

impl<'de> Deserialize<'de> for Schedule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Loader::new().deserialize(deserializer)
    }
}

/// Deserializes schedules with rules, or with zone data from a source of the caller's choice.
///
/// A serialized schedule has the name of its rule, not the rule: a process registers its rules by name at its start, as it
/// does with handlers. The implementation of [`DeserializeSeed`] is for `&Loader`.
///
/// # Examples
///
/// A rule that survives a restart:
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use serde::de::DeserializeSeed;
/// use timerqueue_scheduler::{Loader, Schedule, Zones};
///
/// fn fortnight(t: SystemTime) -> Option<SystemTime> {
///     t.checked_add(Duration::from_secs(14 * 24 * 60 * 60))
/// }
///
/// let stored = serde_json::to_string(&Schedule::rule("fortnight", fortnight).build()?)?;
/// assert_eq!(stored, r#"{"rule":"fortnight"}"#);
///
/// let loader = Loader::new().rule("fortnight", fortnight).zones(Zones::bundled());
/// let schedule = loader.deserialize(&mut serde_json::Deserializer::from_str(&stored))?;
/// assert!(schedule.next_after(SystemTime::now()).is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct Loader {
    /// `None`: the system's, which is looked for when the first zone is needed.
    zones: Option<Zones>,
    rules: BTreeMap<String, Arc<dyn Rule>>,
}

impl Loader {
    /// Without rules, and with [`Zones::system`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a rule, or replaces the one of this name.
    #[must_use]
    pub fn rule(mut self, name: &str, rule: impl Rule + 'static) -> Self {
        self.rules.insert(name.to_owned(), Arc::new(rule));
        self
    }

    /// Takes zone data from this source.
    #[must_use]
    pub fn zones(mut self, zones: Zones) -> Self {
        self.zones = Some(zones);
        self
    }
}

impl<'de> DeserializeSeed<'de> for &Loader {
    type Value = Schedule;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Schedule, D::Error> {
        let builder = Form::deserialize(deserializer)?.builder(self).map_err(D::Error::custom)?;
        match &self.zones {
            Some(zones) => builder.build_in(zones),
            None => builder.build(),
        }
        .map_err(D::Error::custom)
    }
}

impl fmt::Debug for Loader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader").field("rules", &self.rules.keys()).field("zones", &self.zones).finish()
    }
}

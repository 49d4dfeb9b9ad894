//! The serialized form of a schedule. [`Schedule`] documents it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::de::{DeserializeSeed, Error as _};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::builder::{ScheduleBuilder, Spec};
use crate::instant::{duration_from_text, duration_to_text, from_text, to_text};
use crate::{Rule, Schedule, ScheduleError, Zones};

/// The fields, in their stable order. Each field of `$more` came later: it is absent in binary
/// formats.
macro_rules! form {
    ($name:ident, #[$absent:meta] $($more:ident: $type:ty),*) => {
        #[derive(Default, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, rename = "Schedule")]
        struct $name {
            #[$absent]
            every: Option<String>,
            #[$absent]
            fixed_delay: Option<String>,
            #[$absent]
            cron: Option<String>,
            #[$absent]
            rule: Option<String>,
            #[$absent]
            zone: Option<String>,
            #[$absent]
            from: Option<String>,
            #[$absent]
            until: Option<String>,
            #[$absent]
            times: Option<u64>,
            #[$absent]
            key: Option<String>,
            #[$absent]
            spread: Option<String>,
            #[$absent]
            jitter: Option<String>,
            $(#[$absent] $more: Option<$type>,)*
        }
    };
}

form!(Form, #[serde(skip_serializing_if = "Option::is_none")] each: String, except: Vec<String>, any: Vec<Form>);
form!(Binary, #[serde(default)]);

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
            each: builder.each.map(|each| each.to_string()),
            except: (!builder.except.is_empty()).then(|| builder.except.clone()),
            ..Self::default()
        };
        match &builder.spec {
            Spec::Every(period) => form.every = Some(duration_to_text(*period)),
            Spec::FixedDelay(delay) => form.fixed_delay = Some(duration_to_text(*delay)),
            Spec::Cron(line) => form.cron = Some(line.clone()),
            Spec::Rule(name, _) => form.rule = Some(name.clone()),
            Spec::Any(parts) => form.any = Some(parts.iter().map(Self::of).collect()),
        }
        form
    }

    fn builder(self, loader: &Loader) -> Result<ScheduleBuilder, ScheduleError> {
        let spec = match (self.every, self.fixed_delay, self.cron, self.rule, self.any) {
            (Some(text), None, None, None, None) => Spec::Every(duration(text)?),
            (None, Some(text), None, None, None) => Spec::FixedDelay(duration(text)?),
            (None, None, Some(line), None, None) => Spec::Cron(line),
            (None, None, None, None, Some(parts)) => {
                Spec::Any(parts.into_iter().map(|part| part.builder(loader)).collect::<Result<_, _>>()?)
            }
            (None, None, None, Some(name), None) => match loader.rules.get(&name) {
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
        builder.each =
            self.each.map(|text| text.parse().map_err(|()| ScheduleError::InvalidEach { text })).transpose()?;
        builder.except = self.except.unwrap_or_default();
        Ok(builder)
    }

    /// For formats that have no names, or no fields but those of the first version.
    fn into_binary(self) -> serde_json::Result<Binary> {
        match self {
            Self { each: None, except: None, any: None, .. } => serde_json::from_value(serde_json::to_value(self)?),
            form => Ok(Binary { every: Some(serde_json::to_string(&form)?), ..Binary::default() }),
        }
    }

    fn from_binary(form: Binary) -> serde_json::Result<Self> {
        match &form.every {
            Some(text) if text.starts_with('{') => serde_json::from_str(text),
            _ => serde_json::from_value(serde_json::to_value(form)?),
        }
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
        if serializer.is_human_readable() {
            return form.serialize(serializer);
        }
        form.into_binary().map_err(S::Error::custom)?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Schedule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Loader::new().deserialize(deserializer)
    }
}

/// The line of a cron line, with the zone in front: `CRON_TZ=Europe/Berlin 30 2 * * *`. All other
/// schedules, and cron lines with other parts, have the JSON text of their serialized form.
/// [`FromStr`] reads both.
impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = Form::of(&self.spec);
        match &form {
            Form {
                cron: Some(line),
                zone,
                from: None,
                until: None,
                times: None,
                key: None,
                spread: None,
                jitter: None,
                each: None,
                except: None,
                ..
            } => match zone {
                Some(zone) => write!(f, "CRON_TZ={zone} {line}"),
                None => f.write_str(line),
            },
            form => f.write_str(&serde_json::to_string(form).map_err(|_| fmt::Error)?),
        }
    }
}

/// A cron line, which may name its zone in front, or the JSON text of a serialized schedule.
///
/// # Examples
///
/// There and back:
///
/// ```
/// use timerqueue_schedule::Schedule;
///
/// for text in ["30 2 * * *", "CRON_TZ=Europe/Berlin 30 2 * * *", r#"{"every":"90s"}"#] {
///     let schedule: Schedule = text.parse()?;
///     assert_eq!(schedule.to_string(), text);
/// }
/// # Ok::<(), timerqueue_schedule::ScheduleError>(())
/// ```
impl FromStr for Schedule {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        if !text.trim_ascii_start().starts_with('{') {
            return Self::cron(text).build();
        }
        let form: Form =
            serde_json::from_str(text).map_err(|error| ScheduleError::InvalidForm { reason: error.to_string() })?;
        form.builder(&Loader::new())?.build()
    }
}

/// Deserializes schedules with rules, or with zone data from a source of the caller's choice.
///
/// A serialized schedule has the name of its rule, not the rule: a process registers its rules by
/// name at its start, as it does with handlers. The implementation of [`DeserializeSeed`] is for
/// `&Loader`.
///
/// # Examples
///
/// A rule that survives a restart:
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use serde::de::DeserializeSeed;
/// use timerqueue_schedule::{Loader, Schedule, Zones};
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
        let form = match deserializer.is_human_readable() {
            true => Form::deserialize(deserializer)?,
            false => Form::from_binary(Binary::deserialize(deserializer)?).map_err(D::Error::custom)?,
        };
        let builder = form.builder(self).map_err(D::Error::custom)?;
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

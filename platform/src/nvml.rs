//! Clocks of GPUs that have no devfreq, through NVIDIA's management library where it is there. They are watched, not pinned. Every call may be
//! unsupported (on Tegra most are), so that each value is optional.

use crate::fault::Fault;
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use serde::Serialize;

/// More GPUs than a machine has.
const GPUS: u32 = 64;

/// One GPU now.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Gpu {
    /// Its name.
    pub name: Option<String>,
    /// Of its SMs, MHz.
    pub mhz: Option<u32>,
    /// The most it could be.
    pub max_mhz: Option<u32>,
    /// °C.
    pub celsius: Option<u32>,
    /// What holds its clocks down: heat, power, or the hardware's brake.
    pub held_down: Option<bool>,
}

/// Whoever knows the machine's GPUs.
pub trait Gpus: Send + Sync {
    /// All of them.
    ///
    /// # Errors
    /// Nobody tells.
    fn read(&self) -> Result<Vec<Gpu>, Fault>;
}

/// The library, loaded when it is opened.
pub struct Library {
    nvml: Nvml,
}

impl Library {
    /// Loads it; None where there is none or it finds no driver.
    pub fn open() -> Option<Self> {
        Nvml::init().ok().map(|nvml| Self { nvml })
    }
}

impl Gpus for Library {
    fn read(&self) -> Result<Vec<Gpu>, Fault> {
        let count = self.nvml.device_count().map_err(|error| Fault::Refused { errno: 0, words: error.to_string() })?;
        let devices = (0..count.min(GPUS)).filter_map(|index| self.nvml.device_by_index(index).ok());
        let holding = ThrottleReasons::SW_POWER_CAP
            | ThrottleReasons::HW_SLOWDOWN
            | ThrottleReasons::SW_THERMAL_SLOWDOWN
            | ThrottleReasons::HW_THERMAL_SLOWDOWN
            | ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN;
        Ok(devices
            .map(|device| Gpu {
                name: device.name().ok(),
                mhz: device.clock_info(Clock::SM).ok(),
                max_mhz: device.max_clock_info(Clock::SM).ok(),
                celsius: device.temperature(TemperatureSensor::Gpu).ok(),
                held_down: device.current_throttle_reasons().ok().map(|reasons| reasons.intersects(holding)),
            })
            .collect())
    }
}

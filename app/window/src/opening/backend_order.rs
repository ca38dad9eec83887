//! The order in which backends are tried until one draws.

use std::fmt;

use super::{Backend, Ending, watch::Refusal};

/// The settings about backends, by name.
#[derive(Debug, Clone, Copy, Default)]
pub struct Chosen<'a> {
    /// `WGPU_BACKEND`: a comma-separated list of the only backends to try.
    pub only: Option<&'a str>,
    /// The backend of the settings. It is tried first.
    pub first: Option<&'a str>,
    /// The backend that drew the window last time.
    pub worked: Option<&'a str>,
}

/// Opens the window with a backend. If the second argument is true, a software driver may draw it.
pub type Attempt<'a> = dyn FnMut(Backend, bool) -> Result<Ending, Refusal> + 'a;

/// The backends in the order in which they are tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendOrder {
    backends: Vec<Backend>,
    /// True if the first backend may draw with a software driver before the hardware of the others
    /// is tried.
    trusts_first: bool,
}

impl BackendOrder {
    /// Creates the order from the settings `chosen` and the system's backends `all`.
    ///
    /// # Errors
    /// If `only` names no backend.
    pub fn new(chosen: Chosen<'_>, all: &[Backend]) -> Result<Self, NoWindow> {
        if let Some(names) = chosen.only.filter(|names| !names.trim().is_empty()) {
            let backends = Backend::named(names);
            if backends.is_empty() {
                let expected = Backend::ALL.map(Backend::name).join(", ");
                return Err(NoWindow::Said(format!("WGPU_BACKEND: expected one of {expected}, got `{names}`")));
            }
            return Ok(BackendOrder { trusts_first: backends.len() == 1, backends });
        }
        // The name may come from another version, or from another computer's settings.
        let known = |name: Option<&str>| Backend::named(name?).into_iter().find(|backend| all.contains(backend));
        let mut backends = Vec::new();
        for backend in [known(chosen.first), known(chosen.worked)].into_iter().flatten() {
            if !backends.contains(&backend) {
                backends.push(backend);
            }
        }
        let trusts_first = !backends.is_empty() || all.len() == 1;
        let rest = all.iter().filter(|backend| !backends.contains(*backend)).copied().collect::<Vec<_>>();
        backends.extend(rest);
        Ok(BackendOrder { backends, trusts_first })
    }

    /// Moves these backends to the end of the order.
    pub fn with_last(mut self, last: &[Backend]) -> Self {
        for backend in last {
            if let Some(at) = self.backends.iter().position(|other| other == backend) {
                let backend = self.backends.remove(at);
                self.backends.push(backend);
            }
        }
        self
    }

    /// Calls `attempt` with one backend after the other until one has drawn the window, and returns
    /// how the window ended. Software drivers are tried after the hardware of all backends.
    ///
    /// # Errors
    /// If no backend could draw, with the reason of each.
    pub fn open(&self, attempt: &mut Attempt<'_>) -> Result<Ending, NoWindow> {
        let mut refused: Vec<(Backend, Refusal)> = Vec::new();
        for (at, &backend) in self.backends.iter().enumerate() {
            match attempt(backend, at == 0 && self.trusts_first) {
                Ok(ending) => return Ok(ending),
                Err(Refusal::Everywhere(why)) => return Err(NoWindow::Said(why)),
                Err(refusal) => refused.push((backend, told(backend, refusal))),
            }
        }
        for (backend, refusal) in &mut refused {
            if matches!(refusal, Refusal::Software(_)) {
                match attempt(*backend, true) {
                    Ok(ending) => return Ok(ending),
                    Err(Refusal::Everywhere(why)) => return Err(NoWindow::Said(why)),
                    Err(again) => *refusal = told(*backend, again),
                }
            }
        }
        Err(NoWindow::Refused(refused.into_iter().map(|(backend, refusal)| (backend, refusal.to_string())).collect()))
    }
}

fn told(backend: Backend, refusal: Refusal) -> Refusal {
    tracing::info!(backend = backend.name(), %refusal, "the window is not drawn with this backend");
    refusal
}

/// Why the window could not be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoWindow {
    /// A sentence.
    Said(String),
    /// All backends that were tried, each with its reason.
    Refused(Vec<(Backend, String)>),
}

impl NoWindow {
    /// A headline, and a line for each backend.
    pub fn lines(&self) -> Vec<String> {
        match self {
            NoWindow::Said(why) => vec![format!("no window: {why}")],
            NoWindow::Refused(reasons) => {
                let reasons = reasons.iter().map(|(backend, why)| format!("{backend}: {why}"));
                ["no window: no graphics backend can draw it".to_owned()].into_iter().chain(reasons).collect()
            }
        }
    }
}

impl fmt::Display for NoWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines().join("; "))
    }
}

#[cfg(test)]
mod tests {
    use Backend::{Direct3d12, Gl, Metal, Vulkan};

    use super::*;

    const WINDOWS: &[Backend] = &[Direct3d12, Vulkan, Gl];

    fn order(chosen: Chosen<'_>) -> Vec<Backend> {
        BackendOrder::new(chosen, WINDOWS).unwrap().backends
    }

    /// A simulated computer: the result of each backend, with hardware only or with a software
    /// driver.
    type Says = fn(Backend, bool) -> Result<Ending, Refusal>;

    /// Returns the attempts and the final result.
    fn walk(chosen: Chosen<'_>, says: Says) -> (Vec<(Backend, bool)>, Result<Ending, NoWindow>) {
        let mut tried = Vec::new();
        let ended = BackendOrder::new(chosen, WINDOWS).unwrap().open(&mut |backend, software| {
            tried.push((backend, software));
            says(backend, software)
        });
        (tried, ended)
    }

    fn broken(why: &str) -> Result<Ending, Refusal> {
        Err(Refusal::Broken(why.to_owned()))
    }

    fn software(name: &str) -> Result<Ending, Refusal> {
        Err(Refusal::Software(name.to_owned()))
    }

    #[test]
    fn backend_order_begins_with_the_chosen_and_the_last_working_one() {
        let all = Chosen::default();
        assert_eq!(order(all), [Direct3d12, Vulkan, Gl]);
        assert_eq!(order(Chosen { worked: Some("gl"), ..all }), [Gl, Direct3d12, Vulkan]);
        assert_eq!(order(Chosen { first: Some("vulkan"), ..all }), [Vulkan, Direct3d12, Gl]);
        assert_eq!(order(Chosen { first: Some("Vulkan"), worked: Some("gl"), ..all }), [Vulkan, Gl, Direct3d12]);
        assert_eq!(order(Chosen { first: Some("gl"), worked: Some("gl"), ..all }), [Gl, Direct3d12, Vulkan]);
        // Names of another system and of another version.
        assert_eq!(order(Chosen { first: Some("metal"), worked: Some("webgpu 2"), ..all }), [Direct3d12, Vulkan, Gl]);
    }

    #[test]
    fn distrusted_backends_are_tried_last() {
        let last = |last: &[Backend]| BackendOrder::new(Chosen::default(), WINDOWS).unwrap().with_last(last).backends;
        assert_eq!(last(&[Direct3d12]), [Vulkan, Gl, Direct3d12]);
        assert_eq!(last(&[Vulkan, Direct3d12, Metal]), [Gl, Vulkan, Direct3d12]);
    }

    #[test]
    fn environment_variable_limits_the_backends() {
        let all = Chosen { first: Some("dx12"), worked: Some("dx12"), ..Chosen::default() };
        assert_eq!(order(Chosen { only: Some("gl,vulkan"), ..all }), [Vulkan, Gl]);
        assert_eq!(order(Chosen { only: Some("metal"), ..all }), [Metal]);
        assert_eq!(order(Chosen { only: Some(" "), ..all }), WINDOWS);
        let none = BackendOrder::new(Chosen { only: Some("glide"), ..all }, WINDOWS).unwrap_err();
        let said = none.lines();
        assert_eq!(said, ["no window: WGPU_BACKEND: expected one of dx12, metal, vulkan, gl, got `glide`"]);
    }

    #[test]
    fn search_tries_each_backend_once_until_one_works() {
        let (tried, ended) = walk(Chosen::default(), |backend, _| match backend {
            Gl => Ok(Ending::Closed),
            _ => broken("Parent device is lost"),
        });
        assert_eq!((tried, ended), (vec![(Direct3d12, false), (Vulkan, false), (Gl, false)], Ok(Ending::Closed)));
        let (tried, ended) = walk(Chosen::default(), |_, _| Ok(Ending::Closed));
        assert_eq!((tried, ended), (vec![(Direct3d12, false)], Ok(Ending::Closed)));
    }

    #[test]
    fn search_tries_the_last_working_backend_first() {
        let remembered = Chosen { worked: Some("vulkan"), ..Chosen::default() };
        let (tried, ended) = walk(remembered, |_, _| Ok(Ending::Closed));
        assert_eq!((tried, ended), (vec![(Vulkan, true)], Ok(Ending::Closed)));
        let (tried, ended) =
            walk(
                remembered,
                |backend, _| if backend == Gl { Ok(Ending::Closed) } else { broken("its device was lost") },
            );
        assert_eq!((tried, ended), (vec![(Vulkan, true), (Direct3d12, false), (Gl, false)], Ok(Ending::Closed)));
    }

    #[test]
    fn hardware_of_any_backend_comes_before_software_of_the_first() {
        let says: Says = |backend, allowed| match backend {
            Direct3d12 => broken("no adapter"),
            Vulkan if !allowed => software("llvmpipe"),
            Vulkan => Ok(Ending::Closed),
            _ => Ok(Ending::Closed),
        };
        assert_eq!(walk(Chosen::default(), says).0, [(Direct3d12, false), (Vulkan, false), (Gl, false)]);
        let says: Says = |backend, allowed| match backend {
            Direct3d12 => broken("no adapter"),
            _ if !allowed => software("llvmpipe"),
            Vulkan => broken("its device was lost"),
            _ => Ok(Ending::Closed),
        };
        let (tried, ended) = walk(Chosen::default(), says);
        let hardware = [(Direct3d12, false), (Vulkan, false), (Gl, false)];
        assert_eq!(
            (&tried[..3], &tried[3..], ended),
            (&hardware[..], &[(Vulkan, true), (Gl, true)][..], Ok(Ending::Closed))
        );
        // With one backend only, hardware and software are not tried separately.
        let (tried, _) = walk(Chosen { only: Some("vulkan"), ..Chosen::default() }, |_, _| Ok(Ending::Closed));
        assert_eq!(tried, [(Vulkan, true)]);
    }

    #[test]
    fn search_error_has_a_line_per_failed_backend() {
        let (tried, ended) = walk(Chosen::default(), |backend, allowed| match backend {
            Direct3d12 => broken("Parent device is lost"),
            Vulkan => broken("it has no adapter"),
            _ if allowed => broken("its surface was lost"),
            _ => software("llvmpipe"),
        });
        assert_eq!(tried, [(Direct3d12, false), (Vulkan, false), (Gl, false), (Gl, true)]);
        let lines = [
            "no window: no graphics backend can draw it",
            "Direct3D 12: Parent device is lost",
            "Vulkan: it has no adapter",
            "OpenGL: its surface was lost",
        ];
        assert_eq!(ended.unwrap_err().lines(), lines);
    }

    #[test]
    fn search_ends_at_an_error_that_affects_every_backend() {
        let (tried, ended) = walk(Chosen::default(), |_, _| Err(Refusal::Everywhere("the disk is full".to_owned())));
        assert_eq!(tried, [(Direct3d12, false)]);
        assert_eq!(ended.unwrap_err().to_string(), "no window: the disk is full");
    }
}

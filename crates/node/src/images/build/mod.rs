//! Builds: a Dockerfile or a recipe, carried out in sandboxes of this node, one for each stage.
//!
//! A stage's sandbox stands on its base; commands run in it as in any sandbox, without a way out. When the stage is done
//! the sandbox is stopped and its upper kept as a layer over the base. An equal build of equal things is made once
//! ([`Plan::key`]); single instructions are not kept. What is supported is in `docs/reference/dockerfile.md`.

mod copy;
mod machine;

pub(super) use machine::LABEL;

use super::log::Log;
use super::make::Made;
use super::{Image, ImagesError, chunks, pull};
use crate::error::NodeError;
use crate::node::{Node, blocking};
use branchbox_api::image::{DockerfileRequest, ImageFrom};
use branchbox_api::{ImageRequest, ImageState};
use branchbox_dockerfile::glob::{Glob, parent_of};
use branchbox_dockerfile::ignore::Ignore;
use branchbox_dockerfile::{Action, Base, Body, Config, CopyFrom, File, ParseError, Recipe, Scope};
use branchbox_model::SpecError;
use branchbox_protocol::guest::{SpawnSpec, Stdin};
use copy::Selection;
use machine::Origin;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a build may take when nothing is said.
const SECONDS_DEFAULT: u32 = 3600;
/// Changes when an equal build would give something else than before.
const BUILDER: &str = "branchbox build 1";
/// Where programs are looked for when an image does not say.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const IGNORE_FILE: &str = ".dockerignore";

fn failed(problem: impl Into<String>) -> NodeError {
    ImagesError::Build { problem: problem.into() }.into()
}

fn wrong(error: &ParseError) -> NodeError {
    failed(error.to_string())
}

/// A build that has been read.
#[derive(Debug)]
pub(super) struct Plan {
    file: File,
    stages: Vec<usize>,
    context: DockerfileRequest,
    ignore: Ignore,
}

impl Plan {
    /// Reads what a request wants built, if it wants that.
    ///
    /// # Errors
    /// [`NodeError::Spec`] with the line that is wrong.
    pub(super) fn read(from: &ImageFrom) -> Result<Option<Self>, NodeError> {
        let refuse = |field| move |error: ParseError| NodeError::from(SpecError { field, problem: error.to_string() });
        let (file, context, field) = match from {
            ImageFrom::Dockerfile(request) => {
                let file = branchbox_dockerfile::parse(&request.text).map_err(refuse("dockerfile"))?;
                (file, request.clone(), "dockerfile")
            }
            ImageFrom::Recipe(recipe) => {
                let recipe: Recipe = serde_json::from_value(recipe.clone())
                    .map_err(|error| SpecError { field: "recipe", problem: error.to_string() })?;
                (recipe.into_file().map_err(refuse("recipe"))?, DockerfileRequest::default(), "recipe")
            }
            ImageFrom::Archive(_) | ImageFrom::Reference(_) => return Ok(None),
        };
        let target = context.target.as_deref();
        let stages = branchbox_dockerfile::needed(&file, &context.build_args, target).map_err(refuse(field))?;
        let inline = context.files.iter().find(|file| file.path.trim_start_matches("./") == IGNORE_FILE);
        let inline = inline.map(|file| String::from_utf8_lossy(&file.content).into_owned());
        let ignore = context.dockerignore.clone().or(inline).unwrap_or_default();
        let ignore = Ignore::parse(&ignore).map_err(refuse("dockerignore"))?;
        Ok(Some(Self { file, stages, context, ignore }))
    }

    /// The images that it stands on or copies from.
    fn images(&self) -> Result<BTreeSet<String>, NodeError> {
        let mut found = BTreeSet::new();
        let args = &self.context.build_args;
        for stage in &self.stages {
            match branchbox_dockerfile::base(&self.file, *stage, args).map_err(|error| wrong(&error))? {
                Base::Image(image) => drop(found.insert(image)),
                Base::Scratch => return Err(failed("`FROM scratch` is not supported: nothing can run in it")),
                Base::Stage(_) => {}
            }
            let names: Vec<&str> =
                self.file.stages[..*stage].iter().filter_map(|stage| stage.name.as_deref()).collect();
            for instruction in &self.file.stages[*stage].instructions {
                let Body::Copy(copy) = &instruction.body else { continue };
                let Some(from) = &copy.from else { continue };
                let is_number = from.parse::<usize>().is_ok_and(|number| number < *stage);
                if !is_number && !names.iter().any(|name| name.eq_ignore_ascii_case(from)) {
                    found.insert(from.clone());
                }
            }
        }
        Ok(found)
    }

    /// Names all that a build's result depends on, but for what its commands find by themselves.
    fn key(&self, bases: &BTreeMap<String, Ground>) -> String {
        let mut hasher = Sha256::new();
        let mut add = |text: &str| {
            hasher.update((text.len() as u64).to_le_bytes());
            hasher.update(text);
        };
        add(BUILDER);
        add(&format!("{:?} {:?} {:?}", self.file, self.stages, self.ignore));
        self.context.build_args.iter().for_each(|(name, value)| add(&format!("{name}={value}")));
        bases.iter().for_each(|(name, ground)| add(&format!("{name} {} {:?}", ground.identity, ground.config)));
        let archive = self.context.context.as_ref().map(|archive| archive.sha256.as_str());
        add(archive.unwrap_or_default());
        for file in &self.context.files {
            add(&format!("{} {:o} {}", file.path, file.mode, chunks::hex(&Sha256::digest(&file.content))));
        }
        chunks::hex(&hasher.finalize())
    }
}

/// What a stage stands on, or has become.
#[derive(Debug, Clone)]
struct Ground {
    identity: String,
    links: Vec<String>,
    config: Config,
    scope: Option<Scope>,
}

struct Builder<'a> {
    node: &'a Node,
    id: &'a str,
    request: &'a ImageRequest,
    plan: &'a Plan,
    dir: &'a Path,
    log: &'a std::sync::Arc<Log>,
    /// The context, put together.
    context: Option<PathBuf>,
    bases: BTreeMap<String, Ground>,
    done: BTreeMap<usize, Ground>,
    /// Sandboxes that are to be deleted.
    machines: Vec<String>,
    key: String,
}

/// Builds; nothing of it is left but the image's layers.
pub(super) async fn build(
    node: &Node,
    id: &str,
    request: &ImageRequest,
    plan: &Plan,
    dir: &Path,
    log: &std::sync::Arc<Log>,
) -> Result<Made, NodeError> {
    let mut builder = Builder {
        node,
        id,
        request,
        plan,
        dir,
        log,
        context: None,
        bases: BTreeMap::new(),
        done: BTreeMap::new(),
        machines: Vec::new(),
        key: String::new(),
    };
    let seconds = request.build.timeout_seconds.unwrap_or(SECONDS_DEFAULT);
    let mut closing = node.closing();
    let made = tokio::select! {
        made = builder.build() => made,
        () = tokio::time::sleep(Duration::from_secs(seconds.into())) => {
            Err(failed(format!("it was not done after {seconds} seconds")))
        }
        _ = closing.wait_for(|closing| *closing) => Err(NodeError::Closing),
    };
    for machine in std::mem::take(&mut builder.machines) {
        // A node that goes down does that when it comes back.
        if let Err(error) = node.delete(&machine).await {
            tracing::warn!(sandbox = machine, %error, "a sandbox of a build stays");
        }
    }
    made
}

impl Builder<'_> {
    async fn build(&mut self) -> Result<Made, NodeError> {
        for image in self.plan.images()? {
            let ground = self.ground(&image).await?;
            self.bases.insert(image, ground);
        }
        self.key = self.plan.key(&self.bases);
        if self.request.cache
            && let Some(known) = self.node.inner.images.all().iter().find(|image| is_made(image, &self.key))
        {
            self.log.say("build", &format!("the same as image {}, which is taken", known.id));
            let (identity, links) = (known.identity.clone().unwrap_or_default(), known.links.clone());
            return Ok(Made { identity, links, config: known.config.clone(), key: Some(self.key.clone()) });
        }
        if let Some(archive) = self.plan.context.context.clone() {
            let path = self.dir.join("context");
            let (inner, to) = (std::sync::Arc::clone(&self.node.inner), path.clone());
            blocking(move || chunks::put_together(&inner, &archive, &to)).await?;
            self.context = Some(path);
        }
        for stage in &self.plan.stages {
            let ground = self.stage(*stage).await?;
            self.done.insert(*stage, ground);
        }
        let last = self.plan.stages.last().and_then(|stage| self.done.remove(stage));
        let Ground { identity, links, config, .. } = last.ok_or_else(|| failed("there is nothing to build"))?;
        Ok(Made { identity, links, config: config.to_oci(), key: Some(self.key.clone()) })
    }

    /// An image of this node, or else of a registry.
    async fn ground(&self, name: &str) -> Result<Ground, NodeError> {
        let read = |config: &serde_json::Value| {
            let text = if config.is_null() { "{}".into() } else { config.to_string() };
            let mut config = Config::from_oci(text.as_bytes()).map_err(|error| failed(format!("{name}: {error}")))?;
            config.env.entry("PATH".into()).or_insert_with(|| PATH.into());
            Ok::<_, NodeError>(config)
        };
        match self.node.inner.image_record(name) {
            Ok(image) => {
                let mut config = read(&image.config)?;
                // What was said when it was made; its path is made of the configuration's.
                let said = image.defaults.env.iter().filter(|(name, _)| *name != "PATH");
                config.env.extend(said.map(|(name, value)| (name.clone(), value.clone())));
                let identity = image.identity()?.to_owned();
                Ok(Ground { identity, links: image.links.clone(), config, scope: None })
            }
            Err(NodeError::NoImage { .. }) => {
                let dir = self.dir.join(format!("pull-{}", self.bases.len()));
                fs_err::create_dir(&dir).map_err(|source| NodeError::File {
                    action: "make",
                    path: dir.clone(),
                    source,
                })?;
                let made = pull::pull(self.node, name, &dir, self.log).await?;
                let config = read(&made.config)?;
                Ok(Ground { identity: made.identity, links: made.links, config, scope: None })
            }
            Err(error) => Err(error),
        }
    }

    async fn stage(&mut self, number: usize) -> Result<Ground, NodeError> {
        let (file, args) = (&self.plan.file, &self.plan.context.build_args);
        let told = |error: ParseError| wrong(&error);
        let mut scope = Scope::new(file, number, args).map_err(told)?;
        let mut ground = match branchbox_dockerfile::base(file, number, args).map_err(told)? {
            Base::Image(image) => self.bases.get(&image).cloned(),
            Base::Stage(stage) => self.done.get(&stage).cloned(),
            Base::Scratch => None,
        }
        .ok_or_else(|| failed("a stage has no ground"))?;
        if let Some(below) = &ground.scope {
            scope.inherit(below);
        }
        let mut machine = None;
        for instruction in &file.stages[number].instructions {
            let action = branchbox_dockerfile::step(instruction, &mut ground.config, &mut scope).map_err(told)?;
            if action == Action::None {
                continue;
            }
            self.log.say("build", &instruction.shown);
            let sandbox = match &machine {
                Some(sandbox) => String::clone(sandbox),
                None => self.start(&ground.identity).await?,
            };
            machine = Some(sandbox.clone());
            let at = |error: NodeError| match (error, instruction.line) {
                (NodeError::Images(ImagesError::Build { problem }), line @ 1..) => {
                    failed(format!("line {line}: {problem}"))
                }
                (error, _) => error,
            };
            self.act(&sandbox, action, &instruction.shown).await.map_err(at)?;
        }
        if let Some(sandbox) = machine {
            ground.identity = self.keep(&sandbox, &ground.identity, number).await?;
        }
        ground.scope = Some(scope);
        Ok(ground)
    }

    async fn act(&mut self, sandbox: &str, action: Action, shown: &str) -> Result<(), NodeError> {
        match action {
            Action::None => Ok(()),
            Action::Directory(path) => self.make_folder(sandbox, &path).await,
            Action::Run { argv, script, env, user, workdir } => {
                let user = match user {
                    Some(user) => self.owner(sandbox, &user).await?,
                    None => (0, 0),
                };
                let spec = SpawnSpec {
                    attached: true,
                    argv,
                    cwd: workdir,
                    env: env.into_iter().collect(),
                    env_clear: false,
                    user,
                    stdin: Stdin::Null,
                    pty: None,
                    timeout_ms: None,
                    display: shown.chars().take(200).collect(),
                    tag: "build".into(),
                };
                match script {
                    Some(text) => self.run_script(sandbox, &text, spec).await,
                    None => self.run(sandbox, spec).await,
                }
            }
            Action::Copy { from, to, into_directory, chown, chmod, unpack } => {
                let owner = match &chown {
                    Some(owner) => self.owner(sandbox, owner).await?,
                    None => (0, 0),
                };
                let into_directory = into_directory || self.is_folder(sandbox, &to).await?;
                let mut selection = Selection {
                    globs: Vec::new(),
                    below: String::new(),
                    ignore: Ignore::default(),
                    to,
                    into_directory,
                    owner: (owner.0.into(), owner.1.into()),
                    mode: chmod,
                    unpack_in: unpack.then(|| self.dir.to_path_buf()),
                };
                self.copy(sandbox, from, &mut selection).await
            }
        }
    }

    async fn copy(&mut self, sandbox: &str, from: CopyFrom, selection: &mut Selection) -> Result<(), NodeError> {
        let identity = match &from {
            CopyFrom::Context { sources } => {
                let files = self.plan.context.files.iter();
                let files = files.map(|file| (file.path.clone(), file.mode, file.content.clone())).collect();
                let origin = Origin::Context { archive: self.context.clone(), files };
                let mut chosen = choose(selection, sources, String::new())?;
                chosen.ignore = self.plan.ignore.clone();
                return self.put_in_place(sandbox, chosen, origin).await;
            }
            CopyFrom::Inline { name, content } => {
                let origin = Origin::Context { archive: None, files: vec![(name.clone(), 0o644, content.clone())] };
                let chosen = Selection { unpack_in: None, ..choose(selection, &[escaped(name)], String::new())? };
                return self.put_in_place(sandbox, chosen, origin).await;
            }
            CopyFrom::Stage { stage, .. } => self.done.get(stage).map(|ground| ground.identity.clone()),
            CopyFrom::Image { image, .. } => self.bases.get(image).map(|ground| ground.identity.clone()),
        };
        let (CopyFrom::Stage { sources, .. } | CopyFrom::Image { sources, .. }) = from else { return Ok(()) };
        let source = self.start(&identity.ok_or_else(|| failed("what is copied from was not built"))?).await?;
        for text in sources {
            let (path, names) = self.origin(&source, &text).await?;
            let chosen = choose(selection, std::slice::from_ref(&text), path.clone())?;
            let origin = Origin::Folder { sandbox: source.clone(), path, names };
            self.put_in_place(sandbox, chosen, origin).await?;
        }
        self.remove(&source).await
    }

    /// The smallest folder that holds all that is copied, and the names in it if not all of them are needed.
    async fn origin(&self, sandbox: &str, text: &str) -> Result<(String, Vec<String>), NodeError> {
        let parent = parent_of(text);
        let name = text.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        if Glob::new(text).map_err(failed)?.is_literal() && !matches!(name, "" | "." | "..") {
            let whole = format!("{}/{name}", parent.trim_end_matches('/'));
            let is_folder = self.is_folder(sandbox, &whole).await?;
            return Ok(if is_folder { (whole, Vec::new()) } else { (parent, vec![name.to_owned()]) });
        }
        let names = if parent == "/" { self.root_names(sandbox).await? } else { Vec::new() };
        Ok((parent, names))
    }

    async fn put_in_place(&self, sandbox: &str, selection: Selection, origin: Origin) -> Result<(), NodeError> {
        let (to, into_directory) = (selection.to.clone(), selection.into_directory);
        if into_directory {
            self.make_folder(sandbox, &to).await?;
        }
        let selected = self.put(sandbox, selection, origin).await?;
        if selected.is_directory { self.make_folder(sandbox, &to).await } else { Ok(()) }
    }

    async fn remove(&mut self, sandbox: &str) -> Result<(), NodeError> {
        self.node.delete(sandbox).await?;
        self.machines.retain(|machine| machine != sandbox);
        Ok(())
    }

    /// Keeps what a stage's sandbox has written as a layer; the identity with it.
    async fn keep(&mut self, sandbox: &str, identity: &str, stage: usize) -> Result<String, NodeError> {
        self.node.stop(sandbox).await?;
        let live = self.node.live(sandbox)?;
        let upper = live.record().detail.root.upper.clone();
        // Without the cache it may hold something else than an equal build before.
        let apart = if self.request.cache { "" } else { self.id };
        let name = chunks::hex(&Sha256::digest(format!("{} {stage} {apart}", self.key)));
        let (pool, layer) = (self.node.inner.pool()?, name.clone());
        blocking(move || {
            pool.keep_built(&upper, &layer).map_err(|error| super::image_error("keep what was built", &error))
        })
        .await?;
        self.remove(sandbox).await?;
        Ok(format!("{identity}+{name}"))
    }
}

fn is_made(image: &Image, key: &str) -> bool {
    image.state == ImageState::Ready && image.key.as_deref() == Some(key)
}

fn choose(like: &Selection, sources: &[String], below: String) -> Result<Selection, NodeError> {
    let glob = |text: &String| Ok((text.clone(), Glob::new(text).map_err(failed)?));
    let globs = sources.iter().map(glob).collect::<Result<Vec<_>, NodeError>>()?;
    // A pattern may name several files, which cannot have one name.
    let into_directory = like.into_directory || globs.iter().any(|(_, glob)| !glob.is_literal());
    Ok(Selection {
        globs,
        below,
        ignore: Ignore::default(),
        to: like.to.clone(),
        into_directory,
        owner: like.owner,
        mode: like.mode,
        unpack_in: like.unpack_in.clone(),
    })
}

/// A name as a pattern that means it alone.
fn escaped(name: &str) -> String {
    name.chars().flat_map(|letter| if "*?[\\".contains(letter) { vec!['\\', letter] } else { vec![letter] }).collect()
}

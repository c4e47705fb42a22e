package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/image"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// templateVersion is part of every key: raise it when the same step is to be done in another way.
const templateVersion = 2

// stepError says which step of a build failed.
type stepError struct {
	step int
	what string
	err  error
}

// Error names the step.
func (e *stepError) Error() string { return fmt.Sprintf("step %d, %s: %v", e.step, e.what, e.err) }

// Unwrap returns why it failed.
func (e *stepError) Unwrap() error { return e.err }

// rootOf is what lies below the layers of a template.
func rootOf(s outboard.TemplateSpec) string {
	if s.Image != "" {
		return sandbox.Bare
	}
	return ""
}

// buildStack does the steps of a build one after another, each over what those before have made. A step that was
// done before over the same is not done again. digest is of the image.
func (f *Fleet) buildStack(ctx context.Context, b outboard.TemplateBuild,
	log *buildLog) (st stack, digest string, err error) {
	st = stack{rootfs: rootOf(b.Spec), owner: b.Owner, person: b.Person, org: b.Org, release: func() {}}
	if b.Spec.Image != "" {
		log.line(0, "info", "FROM "+b.Spec.Image)
		img, err := f.cfg.Images.ResolveAs(ctx, b.Spec.Image, f.login(b))
		if err != nil {
			return st, "", fmt.Errorf("FROM %s: %w", b.Spec.Image, err)
		}
		st.layers, st.settings, digest = img.Layers, img.Settings, img.Digest
	}
	env, mirrors, err := f.packageNetwork(buildEnv(b.Spec))
	if err != nil {
		return st, "", err
	}
	wish := env.Networking
	for i, s := range b.Spec.Steps {
		what := describe(s)
		log.line(i+1, "info", fmt.Sprintf("[%d/%d] %s", i+1, len(b.Spec.Steps), what))
		wish.AllowedHosts = b.Spec.Hosts
		if i < b.Spec.Inherited {
			wish.AllowedHosts = s.Hosts // what the template that it is of had for it
		}
		env.Networking = f.bound(wish)
		x := stepRun{f: f, n: i + 1, env: env, mirrors: mirrors, log: log}
		if err := x.do(ctx, &st, s); err != nil {
			return st, "", &stepError{i + 1, what, err}
		}
	}
	st.start, st.ready = b.Spec.Start, b.Spec.Ready
	return st, digest, nil
}

// bound is the network of a build: what it wants, as far as the server's bound on boxes has it. A build runs
// what a client says, as a box does.
func (f *Fleet) bound(want outboard.Networking) outboard.Networking {
	if f.cfg.Bound == nil {
		return outboard.Networking{Mode: "none"}
	}
	n := f.cfg.Bound(want)
	n.Ask = outboard.NetAsk{Approver: outboard.ApproverNone}
	return n
}

// maxStepText bounds what is shown of a step.
const maxStepText = 200

// describe shows a step as a Dockerfile has it, on one line.
func describe(s outboard.TemplateStep) string {
	text := strings.ToUpper(string(s.Kind)) + " "
	switch s.Kind {
	case outboard.StepRun:
		text += s.Command
	case outboard.StepCopy:
		text += s.Source + " " + s.Target
	case outboard.StepEnv:
		for i, k := range slices.Sorted(maps.Keys(s.Env)) {
			text += map[bool]string{true: " "}[i > 0] + k + "=" + s.Env[k]
		}
	case outboard.StepWorkdir:
		text += s.Target
	case outboard.StepUser:
		text += s.User
	}
	text, more, cut := strings.Cut(strings.TrimSpace(text), "\n")
	if len(text) > maxStepText {
		text, cut, more = strings.ToValidUTF8(text[:maxStepText], ""), true, " "
	}
	if cut && more != "" {
		text += " ..."
	}
	return text
}

// stepRun does one step.
type stepRun struct {
	f       *Fleet
	n       int
	env     outboard.EnvConfig
	mirrors map[string]string
	log     *buildLog
}

func (x *stepRun) do(ctx context.Context, st *stack, s outboard.TemplateStep) error {
	switch s.Kind {
	case outboard.StepEnv:
		return st.setEnv(s.Env)
	case outboard.StepUser:
		st.settings.User = s.User
		return nil
	case outboard.StepWorkdir:
		dir := s.Target
		if !path.IsAbs(dir) {
			dir = path.Join("/", st.settings.Workdir, dir)
		}
		if dir = path.Clean(dir); !image.SafeDir(dir) {
			return outboard.Errorf(outboard.Invalid, "%q cannot be where programs begin", s.Target)
		}
		st.settings.Workdir = dir
		return x.layer(ctx, st, map[string]any{"workdir": dir, "user": st.settings.User, "salt": s.Salt},
			func(ctx context.Context, m *machine) error {
				_, err := m.Mkdir(ctx, FileRef{Path: Name(dir), User: st.settings.User})
				if is(err, guest.Conflict) {
					return nil
				}
				return plain(err)
			})
	case outboard.StepRun:
		h := defaults{user: s.User, dir: st.settings.Workdir}
		if h.user == "" {
			h.user = st.settings.User
		}
		key := map[string]any{"run": s.Command, "user": h.user, "dir": h.dir, "env": st.settings.Env, "salt": s.Salt}
		return x.layer(ctx, st, key,
			func(ctx context.Context, m *machine) error { m.defaults = h; return x.run(ctx, m, s.Command) })
	case outboard.StepCopy:
		c := copying{x: x, step: s, user: s.User, dir: st.settings.Workdir}
		if c.user == "" {
			c.user = st.settings.User
		}
		c.user, _, _ = strings.Cut(c.user, ":")
		key := map[string]any{"copy": s.Files.Digest, "source": s.Source, "target": s.Target, "user": c.user,
			"dir": c.dir, "mode": s.Mode, "salt": s.Salt}
		return x.layer(ctx, st, key, c.copy)
	}
	return outboard.Errorf(outboard.Internal, "a step of kind %q", s.Kind)
}

// layer adds what work does to a stack.
func (x *stepRun) layer(ctx context.Context, st *stack, what map[string]any,
	work func(context.Context, *machine) error) error {
	what["template"], what["layers"] = templateVersion, st.layers
	if st.rootfs != sandbox.Bare {
		release, err := os.ReadFile("/etc/os-release") // what programs the host has
		if err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("asking what system this is: %w", err)
		}
		what["host"] = string(release)
	}
	key, err := json.Marshal(what)
	if err != nil {
		return fmt.Errorf("naming a layer: %w", err)
	}
	cached := true
	err = x.f.build(ctx, orDefault(st.org), st, string(key), x.env,
		func(ctx context.Context, m *machine) (built, error) {
			cached = false
			return built{}, work(ctx, m)
		})
	if err == nil && cached {
		x.log.line(x.n, "info", "CACHED")
	}
	return err
}

// shell is how a command of a step is run: with bash where there is one, as people write for it.
const shell = `if [ -x /bin/bash ]; then exec /bin/bash -c "$1"; fi; exec /bin/sh -c "$1"`

func shellArgv(command string) []string { return []string{"/bin/sh", "-c", shell, "sh", command} }

// run does a RUN step. What the command says goes into the log as it comes.
func (x *stepRun) run(ctx context.Context, m *machine, command string) error {
	var t tail
	var part bytes.Buffer
	say := func(b []byte) {
		part.Write(b)
		for {
			line, err := part.ReadString('\n')
			if err != nil && len(line) < maxLogLine {
				part.Reset()
				part.WriteString(line)
				return
			}
			x.log.line(x.n, "info", strings.TrimRight(line, "\r\n"))
		}
	}
	_, exit, err := m.StartProcess(ctx, ProcessStart{Argv: shellArgv(command), Env: x.mirrors},
		func(e ProcessEvent) error {
			if e.Kind == Stdout || e.Kind == Stderr {
				t.add(e.Data)
				say(e.Data)
			}
			return nil
		})
	if part.Len() > 0 {
		x.log.line(x.n, "info", part.String())
	}
	switch {
	case err != nil:
		return plain(err)
	case exit.Signal != 0:
		return outboard.Errorf(outboard.Invalid, "it was ended by signal %d%s", exit.Signal, andSaid(t.String()))
	case exit.Code != 0:
		return outboard.Errorf(outboard.Invalid, "it ended with status %d%s", exit.Code, andSaid(t.String()))
	}
	return nil
}

// andSaid is the end of a sentence about a program: what it said, or nothing where it said nothing.
func andSaid(said string) string { return words(" and said:\n", said) }

// words puts an introduction before what a program said, if it said anything.
func words(intro, said string) string {
	if strings.TrimSpace(said) == "" {
		return ""
	}
	return intro + said
}

// basePath is what PATH means where nothing has set it.
const basePath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// setEnv sets variables, in which $NAME stands for what was set before.
func (st *stack) setEnv(vars map[string]string) error {
	had := st.settings.Env
	lookup := func(name string) string {
		if v, ok := had[name]; ok || name != "PATH" {
			return v
		}
		return basePath
	}
	add := map[string]string{}
	for name, value := range vars {
		value = os.Expand(value, lookup)
		if !image.SafeEnv(name, value) {
			return outboard.Errorf(outboard.Invalid, "the variable %q cannot be set to %q: it would change how "+
				"programs load, resolve or trust, or has no such name; PATH takes absolute directories", name, value)
		}
		add[name] = value
	}
	if len(had)+len(add) > maxTemplateEnv {
		return outboard.Errorf(outboard.Invalid, "more than %d variables", maxTemplateEnv)
	}
	st.add(add)
	return nil
}

// clean makes text what a database and a terminal can hold.
func clean(s string) string {
	const most = 16 << 10
	s = strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' && r != '\x1b' {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

// is reports whether an error is a refusal by the guest with a code.
func is(err error, code string) bool {
	g, ok := errors.AsType[*guest.Error](err)
	return ok && g.Code == code
}

// plain is a guest's refusal for who wrote the step: it is about what they asked for.
func plain(err error) error {
	if g, ok := errors.AsType[*guest.Error](err); ok && g.Code != guest.Internal {
		return outboard.Errorf(outboard.Invalid, "%s", g.Message)
	}
	return err
}

package control

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/fleet"
	"github.com/outboard-dev/outboard/internal/store"
)

// Boxes are sandboxes that a client makes for itself. What runs in one is described with fleet's types.
type (
	// Sandbox is the running sandbox of a box; see fleet.UseBox.
	Sandbox = fleet.Sandbox
	// ProcessStart asks for a process.
	ProcessStart = fleet.ProcessStart
	// ProcessRef names one.
	ProcessRef = fleet.ProcessRef
	// ProcessEvent is a piece of one's life.
	ProcessEvent = fleet.ProcessEvent
	// ProcessKind says what an event is.
	ProcessKind = fleet.ProcessKind
	// ProcessExit is how one ended.
	ProcessExit = fleet.ProcessExit
	// ProcessInfo describes one.
	ProcessInfo = fleet.ProcessInfo
	// TerminalSize is a terminal's.
	TerminalSize = fleet.TerminalSize
	// Name is a path: any bytes.
	Name = fleet.Name
	// FileRef names a file of a box and who asks.
	FileRef = fleet.FileRef
	// Entry describes a file of a box.
	Entry = fleet.Entry
	// Change is something that happened in a watched directory.
	Change = fleet.Change
	// Refusal is why a machine would not do something; its Code is one of guest's.
	Refusal = fleet.Refusal
	// BoxSample is what a box used at a moment.
	BoxSample = fleet.BoxSample
	// BoxLine is a line of a box's log.
	BoxLine = fleet.BoxLine
)

// The kinds of a ProcessEvent.
const (
	Started  = fleet.Started
	Stdout   = fleet.Stdout
	Stderr   = fleet.Stderr
	Terminal = fleet.Terminal
	Lost     = fleet.Lost
)

// ProgramSFTP is a ProcessStart.Program.
const ProgramSFTP = fleet.ProgramSFTP

// BaseTemplate is the template that is always there: the host's programs.
const BaseTemplate = "base"

// Limits of a box.
const (
	maxBoxTTL    = 30 * 24 * time.Hour // longer than anybody means; a box that is needed longer is given more time
	maxBoxPairs  = 256                 // of metadata and of variables, so that a row stays small
	maxBoxText   = 64 << 10            // of each of them together
	maxForks     = 100                 // of one request, as E2B has it
	forksAtOnce  = 4                   // each loads files and starts a machine
	secretLength = 32                  // bytes: nobody guesses it
	maxOpenPorts = 64                  // of a box, to everybody
)

// BoxSpec describes a box to make.
type BoxSpec struct {
	Template  string // BaseTemplate, a snapshot's id or name, or a template's id, NAME or NAME:TAG; "" = BaseTemplate
	Image     string // instead of the host's programs, with BaseTemplate; "" = none
	Vars      map[string]string
	Metadata  map[string]string
	Limits    outboard.SandboxLimits // zero: the template's
	TTL       time.Duration
	OnTimeout outboard.TimeoutPolicy
	NoNetwork bool                // its machine has no way to the gateway at all
	Net       outboard.BoxNetwork // what it may reach, within the server's bound
	Headers   BoxHeaders          // that the gateway sets on its requests
	Password  outboard.Secret     // for Net.Proxy
	Public    bool                // its ports from outboard.FirstPublicPort up ask for no token
	MaskHost  string              // see outboard.Box
	TLSPorts  []uint16            // see outboard.Box
}

// CreateBox makes a box and returns when it runs.
func (c *Control) CreateBox(ctx context.Context, by outboard.Caller, p BoxSpec) (outboard.Box, error) {
	if err := c.boxes(by); err != nil {
		return outboard.Box{}, err
	}
	if err := errors.Join(p.check(), c.checkBoxNetwork(p.NoNetwork, p.Net), p.Headers.check(p.NoNetwork),
		checkProxyPassword(p.Net.Proxy, p.Password)); err != nil {
		return outboard.Box{}, err
	}
	b := outboard.Box{ID: outboard.NewBoxID(), Org: by.In(), Owner: by.Key, Person: by.User, Template: BaseTemplate,
		Env:  outboard.EnvConfig{Kind: "cloud", Limits: p.Limits},
		Vars: p.Vars, Metadata: p.Metadata, Secret: newSecret(), NoNetwork: p.NoNetwork, Net: p.Net, MaskHost: p.MaskHost, TLSPorts: p.TLSPorts, OnTimeout: p.OnTimeout,
		EndAt: c.clock().Add(p.TTL)}
	b.Env.Networking.Mode, b.Env.Image = "none", p.Image
	if !p.Public {
		b.Traffic = newSecret()
	}
	var files outboard.BlobRef
	if p.Template != "" && p.Template != BaseTemplate {
		if p.Image != "" {
			return b, invalid("image: a sandbox made from the template %s begins with what that has", quote(p.Template))
		}
		limits := b.Env.Limits
		var err error
		if files, err = c.fromTemplate(ctx, by, &b, p.Template); err != nil {
			return b, err
		}
		if limits != (outboard.SandboxLimits{}) {
			b.Env.Limits = limits
		}
	}
	var err error
	if b.Headers, err = c.sealHeaders(ctx, by, b.ID, p.Headers, p.Password); err != nil {
		return b, err
	}
	made, err := c.makeBox(ctx, by, b, files)
	if err != nil {
		c.forgetHeaders(ctx, &b)
	}
	return made, err
}

// fromTemplate makes a box begin with a snapshot, whose files it returns, or a template.
func (c *Control) fromTemplate(ctx context.Context, by outboard.Caller, b *outboard.Box,
	ref string) (files outboard.BlobRef, err error) {
	n, err := c.Snapshot(ctx, by, ref)
	if err == nil {
		b.Template, b.Env = string(n.ID), n.Env
		return n.Files, nil
	}
	if outboard.KindOf(err) != outboard.NotFound {
		return files, err
	}
	if name, tag, tagged := strings.Cut(ref, ":"); tagged {
		if _, err := c.Snapshot(ctx, by, name); err == nil {
			return files, onlyDefault("snapshot", name, tag)
		}
	}
	m, build, err := c.templateFor(ctx, by, ref)
	if err != nil {
		return files, err
	}
	b.Template, b.Env.Template, b.Env.Build = string(m.ID), ref, build.ID
	b.Env.Isolation, b.Env.Limits = build.Spec.Isolation, build.Spec.Limits
	return files, nil
}

func (c *Control) makeBox(ctx context.Context, by outboard.Caller, b outboard.Box,
	files outboard.BlobRef) (outboard.Box, error) {
	if err := c.alive(ctx, b.Subject()); err != nil {
		return b, err
	}
	if err := c.fleet.RoomForBox(ctx, b.Org, false); err != nil {
		return b, err
	}
	if err := c.record(ctx, by, "box.create", string(b.ID), struct {
		Template  string `json:"template"`
		NoNetwork bool   `json:"no_network,omitempty"`
		outboard.BoxNetwork
		Headers map[string][]string `json:"headers,omitempty"` // names by host
	}{b.Template, b.NoNetwork, b.Net, b.Headers.Names}); err != nil {
		return b, err
	}
	return c.fleet.CreateBox(ctx, b, files)
}

// boxes refuses callers that nobody knows, and processes without sandboxes.
func (c *Control) boxes(by outboard.Caller) error {
	if err := requireDeveloper(by, scopeSandboxes); err != nil {
		return err
	}
	if c.fleet == nil {
		return outboard.Errorf(outboard.Unavailable, "this server makes no sandboxes")
	}
	return nil
}

func newSecret() string {
	b := make([]byte, secretLength)
	rand.Read(b)
	return hex.EncodeToString(b)
}

func (p *BoxSpec) check() error {
	if err := checkTTL(p.TTL, 1); err != nil {
		return err
	}
	for what, m := range map[string]map[string]string{"metadata": p.Metadata, "env": p.Vars} {
		n := 0
		for k, v := range m {
			if k == "" || strings.ContainsRune(k, 0) || what == "env" && strings.ContainsRune(k, '=') {
				return invalid("%s: the name %s is not usable", what, quote(k))
			}
			if strings.ContainsRune(v, 0) {
				return invalid("%s: what %s holds has a NUL character", what, quote(k))
			}
			n += len(k) + len(v)
		}
		if len(m) > maxBoxPairs || n > maxBoxText {
			return invalid("%s: at most %d pairs and %d bytes", what, maxBoxPairs, maxBoxText)
		}
	}
	if p.Image != "" {
		if err := fleet.CheckImage(p.Image); err != nil {
			return invalid("image: %w", err)
		}
	}
	if err := p.Limits.Check(); err != nil {
		return invalid("limits.%w", err)
	}
	if p.OnTimeout.DropMemory && (!p.OnTimeout.Pause || p.OnTimeout.Resume) {
		return invalid("dropping the memory at the timeout needs a pause there, and excludes resuming by itself")
	}
	if len(p.TLSPorts) > maxBoxPairs {
		return invalid("tls_ports: at most %d, not %d", maxBoxPairs, len(p.TLSPorts))
	}
	if err := length("mask_host", p.MaskHost, 0, maxName); err != nil {
		return err
	}
	if p.MaskHost != "" && !maskedHost.MatchString(strings.ReplaceAll(p.MaskHost, "${PORT}", "1")) {
		return invalid("mask_host must be the name of a host, with a port or without, not %s", quote(p.MaskHost))
	}
	return nil
}

// maskedHost is what a request may call its host.
var maskedHost = regexp.MustCompile(`^([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$`)

func checkTTL(d time.Duration, least time.Duration) error {
	if d < least || d > maxBoxTTL {
		return invalid("timeout must be %d to %d seconds, not %d", min(1, least), int(maxBoxTTL.Seconds()),
			int(d.Seconds()))
	}
	return nil
}

// Boxes returns all boxes, newest first.
func (c *Control) Boxes(ctx context.Context, by outboard.Caller) ([]outboard.Box, error) {
	if err := requireReader(by); err != nil {
		return nil, err
	}
	all, err := c.store.Boxes(ctx)
	all = slices.DeleteFunc(all, func(b outboard.Box) bool { return b.Org != by.In() })
	for i := range all {
		all[i] = shown(by, all[i])
	}
	return all, err
}

// Box returns one.
func (c *Control) Box(ctx context.Context, by outboard.Caller, id outboard.BoxID) (outboard.Box, error) {
	if err := requireReader(by); err != nil {
		return outboard.Box{}, err
	}
	if !id.Valid() {
		return outboard.Box{}, notFound("sandbox", string(id))
	}
	b, err := c.store.Box(ctx, id)
	if err := ownedBy(by, b.Org, "sandbox", string(id), err); err != nil {
		return outboard.Box{}, err
	}
	return shown(by, b), nil
}

// shown is a box without its secrets for who may only read: they admit to what is in it.
func shown(by outboard.Caller, b outboard.Box) outboard.Box {
	if requireDeveloper(by, scopeSandboxes) != nil {
		b.Secret, b.Traffic = "", ""
	}
	return b
}

// asKey is the caller in the audit, as record has it.
func asKey(by outboard.Caller) fleet.By {
	return fleet.By{Actor: string(by.Key), Rule: "role " + by.Role}
}

// boxFor checks the caller and that the box is there.
func (c *Control) boxFor(ctx context.Context, by outboard.Caller, id outboard.BoxID) (outboard.Box, error) {
	if err := c.boxes(by); err != nil {
		return outboard.Box{}, err
	}
	return c.Box(ctx, by, id)
}

// KillBox ends a box.
func (c *Control) KillBox(ctx context.Context, by outboard.Caller, id outboard.BoxID) error {
	ctx = Removing(ctx) // from all doors
	if _, err := c.boxFor(ctx, by, id); err != nil {
		return err
	}
	if err := c.record(ctx, by, "box.kill", string(id), nil); err != nil {
		// ending one must work when nothing else does
		c.log.Error("the end of a box was not recorded", "box", id, "err", err)
	}
	return wrapLookup("sandbox", string(id), c.fleet.KillBox(ctx, id))
}

// SetBoxTTL gives a running box a time to live from now on, more or less than it has.
func (c *Control) SetBoxTTL(ctx context.Context, by outboard.Caller, id outboard.BoxID,
	ttl time.Duration) (outboard.Box, error) {
	return c.moveEnd(ctx, by, id, ttl, func(_, end time.Time) time.Time { return end })
}

// ExtendBox makes sure that a running box has a time to live from now on, and never less than it has.
func (c *Control) ExtendBox(ctx context.Context, by outboard.Caller, id outboard.BoxID,
	ttl time.Duration) (outboard.Box, error) {
	return c.moveEnd(ctx, by, id, ttl, laterOf)
}

func laterOf(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (c *Control) moveEnd(ctx context.Context, by outboard.Caller, id outboard.BoxID, ttl time.Duration,
	choose func(old, end time.Time) time.Time) (outboard.Box, error) {
	b, err := c.boxFor(ctx, by, id)
	if err != nil {
		return b, err
	}
	if err := checkTTL(ttl, 0); err != nil {
		return b, err
	}
	if err := c.record(ctx, by, "box.timeout", string(id), map[string]int{"seconds": int(ttl.Seconds())}); err != nil {
		return b, err
	}
	b, err = c.store.ChangeBox(ctx, id, func(b *outboard.Box) error {
		if b.State != outboard.BoxRunning {
			return errPaused
		}
		b.EndAt = choose(b.EndAt, c.clock().Add(ttl))
		return nil
	})
	if errors.Is(err, errPaused) {
		return b, outboard.Errorf(outboard.NotFound, "sandbox %s does not run: it is paused, and its time goes on "+
			"when it is resumed", id)
	}
	return b, wrapLookup("sandbox", string(id), err)
}

// errPaused says that a box has no time that passes.
var errPaused = errors.New("the box is paused")

// ReservedPort reports whether a port of a box belongs to Outboard.
func ReservedPort(port uint16) bool { return fleet.ReservedPort(port) }

// MayVisit reports whether somebody with a token, which may be "", may visit a port of a box: with the box's
// own, or without one where its owner said so, of the port or of the box. Programs of a system listen below
// FirstPublicPort, so those are opened by name only. Denied says that the port is Outboard's own; only who may
// visit is told.
func MayVisit(b *outboard.Box, port uint16, token string) error {
	open := slices.Contains(b.OpenPorts, port) || b.Traffic == "" && port >= outboard.FirstPublicPort
	if !open && (b.Traffic == "" || !HasSecret(b.Traffic, token)) {
		return outboard.Errorf(outboard.Unauthenticated, "port %d of sandbox %s asks for its traffic access token",
			port, b.ID)
	}
	if fleet.ReservedPort(port) {
		return errReserved(port)
	}
	return nil
}

func errReserved(port uint16) error {
	return outboard.Errorf(outboard.Denied, "port %d of a sandbox is Outboard's own way out, and is not reached "+
		"from outside", port).
		WithHint("let the program listen on another port")
}

// OpenPort lets everybody who can reach the proxy for ports visit one of a private box's, or nobody without its
// token any more.
func (c *Control) OpenPort(ctx context.Context, by outboard.Caller, id outboard.BoxID, port uint16,
	open bool) (outboard.Box, error) {
	if b, err := c.boxFor(ctx, by, id); err != nil {
		return b, err
	}
	if open && fleet.ReservedPort(port) {
		return outboard.Box{}, errReserved(port)
	}
	action := map[bool]string{true: "box.open_port", false: "box.close_port"}[open]
	if err := c.record(ctx, by, action, string(id), map[string]uint16{"port": port}); err != nil {
		return outboard.Box{}, err
	}
	b, err := c.store.ChangeBox(ctx, id, func(b *outboard.Box) error {
		b.OpenPorts = slices.DeleteFunc(b.OpenPorts, func(p uint16) bool { return p == port })
		if open {
			b.OpenPorts = append(b.OpenPorts, port)
		}
		if len(b.OpenPorts) > maxOpenPorts {
			return outboard.Errorf(outboard.Exhausted, "a sandbox has at most %d open ports", maxOpenPorts)
		}
		return nil
	})
	return b, wrapLookup("sandbox", string(id), err)
}

// PauseBox stops a box until it is resumed; with dropMemory only its files are kept. Conflict when it is paused
// already.
func (c *Control) PauseBox(ctx context.Context, by outboard.Caller, id outboard.BoxID,
	dropMemory bool) (outboard.Box, error) {
	if b, err := c.boxFor(ctx, by, id); err != nil {
		return b, err
	}
	b, err := c.fleet.PauseBox(ctx, asKey(by), id, dropMemory)
	return b, wrapLookup("sandbox", string(id), err)
}

// ResumeBox makes sure that a box runs, for at least ttl, and reports whether it was paused.
func (c *Control) ResumeBox(ctx context.Context, by outboard.Caller, id outboard.BoxID,
	ttl time.Duration) (outboard.Box, bool, error) {
	return c.resumeBox(ctx, by, id, ttl, false)
}

// RebootBox is ResumeBox of what is kept in files: a paused box begins anew with them, without the processes
// that were frozen.
func (c *Control) RebootBox(ctx context.Context, by outboard.Caller, id outboard.BoxID,
	ttl time.Duration) (outboard.Box, bool, error) {
	return c.resumeBox(ctx, by, id, ttl, true)
}

func (c *Control) resumeBox(ctx context.Context, by outboard.Caller, id outboard.BoxID, ttl time.Duration,
	dropMemory bool) (outboard.Box, bool, error) {
	b, err := c.boxFor(ctx, by, id)
	if err == nil {
		err = c.alive(ctx, b.Subject())
	}
	if err != nil {
		return b, false, err
	}
	if err := checkTTL(ttl, 0); err != nil {
		return outboard.Box{}, false, err
	}
	if c.clock().Add(ttl).After(b.EndAt) {
		if err := c.record(ctx, by, "box.timeout", string(id),
			map[string]int{"seconds": int(ttl.Seconds())}); err != nil {
			return b, false, err
		}
	}
	store.Unchanged(ctx) // but for its time; that it wakes is recorded where it does
	b, resumed, err := c.fleet.ResumeBox(ctx, asKey(by), id, dropMemory, func(b *outboard.Box) time.Time {
		return laterOf(b.EndAt, c.clock().Add(ttl))
	})
	return b, resumed, wrapLookup("sandbox", string(id), err)
}

// UseBox returns the machine of a box for the holder of a key; a paused box is resumed.
func (c *Control) UseBox(ctx context.Context, by outboard.Caller, id outboard.BoxID) (Sandbox, error) {
	b, err := c.boxFor(ctx, by, id)
	if err == nil {
		err = c.alive(ctx, b.Subject())
	}
	if err != nil {
		return nil, err
	}
	m, err := c.fleet.UseBox(ctx, asKey(by), id, true)
	return m, wrapLookup("sandbox", string(id), err)
}

// BoxSecret finds a box by its id for who claims to have its secret: match is asked with it, in constant time.
// NotFound if there is no such box, Unauthenticated if the secret does not match, Denied if whose box it is was
// removed.
func (c *Control) BoxSecret(ctx context.Context, id outboard.BoxID,
	match func(b *outboard.Box) bool) (outboard.Box, error) {
	if !id.Valid() {
		return outboard.Box{}, notFound("sandbox", string(id))
	}
	b, err := c.store.Box(ctx, id)
	if err != nil {
		return b, wrapLookup("sandbox", string(id), err)
	}
	if !match(&b) {
		return outboard.Box{}, outboard.Errorf(outboard.Unauthenticated,
			"the access token of sandbox %s is missing or wrong", id)
	}
	return b, c.boxHeld(ctx, b)
}

// HasSecret reports whether secret is the box's, in constant time.
func HasSecret(want, secret string) bool {
	return subtle.ConstantTimeCompare([]byte(want), []byte(secret)) == 1
}

// VisitBox returns the machine of a box that BoxSecret has admitted somebody to. A paused box is resumed only if
// its policy says so; else the answer is Conflict.
func (c *Control) VisitBox(ctx context.Context, b outboard.Box) (Sandbox, error) {
	if c.fleet == nil {
		return nil, outboard.Errorf(outboard.Unavailable, "this server makes no sandboxes")
	}
	if err := c.alive(ctx, b.Subject()); err != nil {
		return nil, err
	}
	m, err := c.fleet.UseBox(ctx, fleet.By{Actor: string(b.ID), Rule: "the box's token"}, b.ID, false)
	return m, wrapLookup("sandbox", string(b.ID), err)
}

// boxHeld refuses the tokens of a box of somebody who was removed, which they still know.
func (c *Control) boxHeld(ctx context.Context, b outboard.Box) error {
	u, err := c.store.Holder(ctx, outboard.Owner{Org: b.Org, Key: b.Owner})
	if err != nil {
		return outboard.Errorf(outboard.KindOf(err), "looking for whose sandbox it is: %w", err)
	}
	if !u.RemovedAt.IsZero() {
		return outboard.Errorf(outboard.Denied, "sandbox %s is of somebody who was removed from the organization, "+
			"or that has ended: its tokens open nothing", b.ID).
			WithHint("others reach it with their own key: outboard box exec %s", b.ID)
	}
	return nil
}

// WhileHeld ends a visit by a box's token, by end, when whose box it is is removed. It returns then, or when ctx ends.
func (c *Control) WhileHeld(ctx context.Context, end context.CancelFunc, b outboard.Box) {
	var seen int64
	endWhen(ctx, end, func() (over bool) {
		n, err := c.revocations(ctx)
		if err != nil || n+1 == seen {
			return false
		}
		if err = c.boxHeld(ctx, b); err == nil {
			seen = n + 1 // where the store does not answer, the next look asks again
		}
		return outboard.KindOf(err) == outboard.Denied
	})
}

// BoxSamples returns what a box used from a time on, oldest first; what a server before this one saw is not kept.
func (c *Control) BoxSamples(ctx context.Context, by outboard.Caller, id outboard.BoxID) ([]BoxSample, error) {
	if _, err := c.boxFor(ctx, by, id); err != nil {
		return nil, err
	}
	return c.fleet.BoxSamples(id), nil
}

// VisitSamples is BoxSamples for who was admitted by BoxSecret.
func (c *Control) VisitSamples(b outboard.Box) []BoxSample { return c.fleet.BoxSamples(b.ID) }

// BoxLog returns the newest lines about a box, oldest first, of this server's time.
func (c *Control) BoxLog(ctx context.Context, by outboard.Caller, id outboard.BoxID) ([]BoxLine, error) {
	if _, err := c.boxFor(ctx, by, id); err != nil {
		return nil, err
	}
	return c.fleet.BoxLog(id), nil
}

// NoteBox adds a line to a box's log.
func (c *Control) NoteBox(id outboard.BoxID, message string, fields map[string]string) {
	if c.fleet != nil {
		c.fleet.NoteBox(id, message, fields)
	}
}

// BoxError gives an error of a box's machine a kind of this package: what the machine refuses keeps its own, and
// a machine that is gone is Unavailable, since the box may live on.
func BoxError(err error) error {
	if fleet.CutOff(err) {
		return outboard.Errorf(outboard.Unavailable, "the sandbox was paused, or has ended")
	}
	r, ok := errors.AsType[*Refusal](err)
	if !ok {
		if _, known := errors.AsType[*outboard.Error](err); err == nil || known &&
			outboard.KindOf(err) != outboard.NotFound {
			return err
		}
		return outboard.Errorf(outboard.Unavailable, "the sandbox's machine is gone: %w", err)
	}
	kinds := map[string]outboard.Kind{"not_found": outboard.NotFound, "invalid": outboard.Invalid,
		"conflict": outboard.Conflict,
		"denied":   outboard.Invalid, "busy": outboard.Exhausted, "full": outboard.Exhausted}
	kind, ok := kinds[r.Code]
	if !ok {
		return outboard.Errorf(outboard.Internal, "%w", err)
	}
	return outboard.Errorf(kind, "%s", r.Message)
}

package e2b

import (
	"cmp"
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// envdVersion says which generation of envd this is, for the SDKs' own gates.
const envdVersion = "0.6.13"

// clientID is a relic that clients expect to be there.
const clientID = "outboard"

// What a box is said to have where nobody limits it: of processors and memory what providers give then.
const (
	defaultCPUs     = 2
	defaultMemoryMB = 2048
	defaultDiskMB   = 10240
)

// sandboxIn is what a client asks for. What is not built is refused by name; what is only advice is not read.
type sandboxIn struct {
	TemplateID      string            `json:"templateID"`
	Timeout         *int64            `json:"timeout"`
	AutoPause       bool              `json:"autoPause"`
	AutoPauseMemory *bool             `json:"autoPauseMemory"`
	AutoResume      *autoResume       `json:"autoResume"`
	AllowInternet   *bool             `json:"allow_internet_access"`
	Network         *networkIn        `json:"network"`
	Metadata        map[string]string `json:"metadata"`
	EnvVars         map[string]string `json:"envVars"`
	IAM             *struct {
		Tokens map[string]any `json:"tokens"`
	} `json:"iam"`
	VolumeMounts []any `json:"volumeMounts"`

	public bool // ports of a sandbox whose maker does not say allowPublicTraffic
}

type autoResume struct {
	Enabled bool `json:"enabled"`
}

type sandboxOut struct {
	TemplateID         string  `json:"templateID"`
	SandboxID          string  `json:"sandboxID"`
	ClientID           string  `json:"clientID"`
	EnvdVersion        string  `json:"envdVersion"`
	EnvdAccessToken    string  `json:"envdAccessToken"`
	TrafficAccessToken *string `json:"trafficAccessToken"`
	Domain             string  `json:"domain"`
}

type listedOut struct {
	TemplateID  string            `json:"templateID"`
	SandboxID   string            `json:"sandboxID"`
	ClientID    string            `json:"clientID"`
	StartedAt   time.Time         `json:"startedAt"`
	EndAt       time.Time         `json:"endAt"`
	EnvdVersion string            `json:"envdVersion"`
	CPUCount    int64             `json:"cpuCount"`
	MemoryMB    int64             `json:"memoryMB"`
	DiskSizeMB  int64             `json:"diskSizeMB"`
	Metadata    map[string]string `json:"metadata"`
	State       string            `json:"state"`
}

type detailOut struct {
	listedOut
	EnvdAccessToken string       `json:"envdAccessToken"`
	AllowInternet   *bool        `json:"allowInternetAccess"`
	Domain          string       `json:"domain"`
	Network         networkOut   `json:"network"`
	Lifecycle       lifecycleOut `json:"lifecycle"`
}

type networkOut struct {
	AllowPublicTraffic bool     `json:"allowPublicTraffic"`
	MaskRequestHost    string   `json:"maskRequestHost,omitempty"`
	AllowOut           []string `json:"allowOut,omitempty"`
	DenyOut            []string `json:"denyOut,omitempty"`
	HTTPSPorts         []uint16 `json:"httpsPorts,omitempty"`

	Rules       map[string][]ruleOut `json:"rules,omitempty"`
	EgressProxy *proxyOut            `json:"egressProxy,omitempty"`
}

// proxyOut is a proxy without its password.
type proxyOut struct {
	Address  string `json:"address"`
	Username string `json:"username,omitempty"`
}

type lifecycleOut struct {
	AutoResume bool   `json:"autoResume"`
	OnTimeout  string `json:"onTimeout"` // kill or pause
}

// show describes a box to who made or resumed it.
func (s *Server) show(r *http.Request, b *outboard.Box) sandboxOut {
	s.handed.add(b)
	out := sandboxOut{TemplateID: b.Template, SandboxID: string(b.ID), ClientID: clientID, EnvdVersion: envdVersion,
		EnvdAccessToken: b.Secret,
		Domain:          s.domainFor(r)}
	if b.Traffic != "" {
		out.TrafficAccessToken = &b.Traffic
	}
	return out
}

func listed(b *outboard.Box) listedOut {
	l := b.Env.Limits
	out := listedOut{TemplateID: b.Template, SandboxID: string(b.ID), ClientID: clientID, StartedAt: b.StartedAt,
		EndAt:       b.EndAt,
		EnvdVersion: envdVersion, CPUCount: cmp.Or(int64(l.CPUs), defaultCPUs), MemoryMB: cmp.Or(l.MemoryBytes>>20,
			defaultMemoryMB),
		DiskSizeMB: cmp.Or(l.DiskBytes>>20, defaultDiskMB), Metadata: b.Metadata, State: string(b.State)}
	return out
}

// create makes a box. The two generations of the call differ in how long one lives that nobody set a time for.
func (s *Server) create(ttl time.Duration) func(r *request) (int, any, error) {
	return func(r *request) (int, any, error) {
		var in sandboxIn
		if err := decode(r.w, r.Request, &in); err != nil {
			return 0, nil, err
		}
		in.public = s.public
		p, err := in.spec(ttl)
		if err != nil {
			return 0, nil, err
		}
		b, err := s.ctl.CreateBox(r.Context(), r.by, p)
		if err != nil {
			return 0, nil, err
		}
		return http.StatusCreated, s.show(r.Request, &b), nil
	}
}

func (in *sandboxIn) spec(ttl time.Duration) (control.BoxSpec, error) {
	p := control.BoxSpec{Template: templateRef(in.TemplateID), Vars: in.EnvVars, Metadata: in.Metadata,
		TTL: seconds(in.Timeout, ttl)}
	p.OnTimeout = outboard.TimeoutPolicy{Pause: in.AutoPause, DropMemory: in.AutoPauseMemory != nil &&
		!*in.AutoPauseMemory,
		Resume: in.AutoResume != nil && in.AutoResume.Enabled}
	if in.TemplateID == "" {
		return p, outboard.Errorf(outboard.Invalid, "templateID is required")
	}
	n := in.Network
	if n == nil {
		n = new(networkIn)
	}
	var err error
	p.Password = n.password()
	if p.Net, err = n.settings(in.AllowInternet); err != nil {
		return p, err
	}
	if p.Headers, err = n.Rules.headers(); err != nil {
		return p, err
	}
	// Without internet access and exceptions from it the machine has no way to the gateway at all.
	p.NoNetwork = in.AllowInternet != nil && !*in.AllowInternet && len(p.Net.Allow) == 0
	p.Public = in.public
	if n.AllowPublicTraffic != nil {
		p.Public = *n.AllowPublicTraffic
	}
	p.MaskHost = n.MaskRequestHost
	if p.TLSPorts, err = n.tlsPorts(); err != nil {
		return p, err
	}
	if in.IAM != nil && len(in.IAM.Tokens) > 0 || len(in.VolumeMounts) > 0 {
		return p, outboard.Errorf(outboard.Unimplemented, "iam tokens and volumes are not built here")
	}
	return p, nil
}

// seconds reads a timeout. What overflows a duration is as long as one can be, and refused for it later.
func seconds(n *int64, def time.Duration) time.Duration {
	if n == nil {
		return def
	}
	const most = int64(1<<63-1) / int64(time.Second)
	return time.Duration(max(min(*n, most), -most)) * time.Second
}

func (s *Server) get(r *request) (int, any, error) {
	b, err := s.ctl.Box(r.Context(), r.by, r.id())
	if err != nil {
		return 0, nil, err
	}
	s.handed.add(&b)
	out := detailOut{listedOut: listed(&b), EnvdAccessToken: b.Secret, Domain: s.domainFor(r.Request),
		Network:   shownNetwork(&b),
		Lifecycle: lifecycleOut{AutoResume: b.OnTimeout.Resume, OnTimeout: "kill"}}
	if b.NoNetwork || b.Net.Closed && len(b.Net.Allow) == 0 {
		out.AllowInternet = new(bool)
	}
	if b.OnTimeout.Pause {
		out.Lifecycle.OnTimeout = "pause"
	}
	return http.StatusOK, out, nil
}

func (s *Server) kill(r *request) (int, any, error) {
	return http.StatusNoContent, nil, s.ctl.KillBox(r.Context(), r.by, r.id())
}

type ttlIn struct {
	Timeout  *int64 `json:"timeout"`
	Duration *int64 `json:"duration"`
	Memory   *bool  `json:"memory"`
	Count    *int   `json:"count"`
	Name     string `json:"name"`
}

func (r *request) ttl() (in ttlIn, err error) { return in, decode(r.w, r.Request, &in) }

// connect makes sure that a box runs, without what it had in memory where the client wants that.
func (s *Server) connect(r *request) (int, any, error) {
	in, err := r.ttl()
	if err != nil {
		return 0, nil, err
	}
	run := s.ctl.ResumeBox
	if in.Memory != nil && !*in.Memory {
		run = s.ctl.RebootBox
	}
	b, resumed, err := run(r.Context(), r.by, r.id(), seconds(in.Timeout, 300*time.Second))
	if err != nil {
		return 0, nil, err
	}
	if resumed {
		return http.StatusCreated, s.show(r.Request, &b), nil
	}
	return http.StatusOK, s.show(r.Request, &b), nil
}

// resume is the older form: Conflict when the box runs.
func (s *Server) resume(r *request) (int, any, error) {
	b, err := s.ctl.Box(r.Context(), r.by, r.id())
	if err == nil && b.State == outboard.BoxRunning {
		err = outboard.Errorf(outboard.Conflict, "sandbox %s is running", b.ID)
	}
	if err != nil {
		return 0, nil, err
	}
	_, out, err := s.connect(r)
	return http.StatusCreated, out, err
}

func (s *Server) pause(r *request) (int, any, error) {
	in, err := r.ttl()
	if err == nil {
		_, err = s.ctl.PauseBox(r.Context(), r.by, r.id(), in.Memory != nil && !*in.Memory)
	}
	return http.StatusNoContent, nil, err
}

func (s *Server) timeout(r *request) (int, any, error) {
	in, err := r.ttl()
	if err == nil && in.Timeout == nil {
		err = outboard.Errorf(outboard.Invalid, "timeout is required")
	}
	if err == nil {
		_, err = s.ctl.SetBoxTTL(r.Context(), r.by, r.id(), seconds(in.Timeout, 0))
	}
	return http.StatusNoContent, nil, err
}

func (s *Server) refresh(r *request) (int, any, error) {
	in, err := r.ttl()
	if err == nil && in.Duration != nil && (*in.Duration < 0 || *in.Duration > 3600) {
		err = outboard.Errorf(outboard.Invalid, "duration must be 0 to 3600 seconds")
	}
	if err == nil {
		_, err = s.ctl.ExtendBox(r.Context(), r.by, r.id(), seconds(in.Duration, 15*time.Second))
	}
	return http.StatusNoContent, nil, err
}

type forkOut struct {
	Sandbox *sandboxOut `json:"sandbox,omitempty"`
	Error   *errorBody  `json:"error,omitempty"`
}

func (s *Server) fork(r *request) (int, any, error) {
	in, err := r.ttl()
	if err != nil {
		return 0, nil, err
	}
	count := 1
	if in.Count != nil {
		count = *in.Count
	}
	forks, err := s.ctl.ForkBox(r.Context(), r.by, r.id(), count, seconds(in.Timeout, 15*time.Second))
	if err != nil {
		return 0, nil, err
	}
	out := make([]forkOut, len(forks))
	for i := range forks {
		if err := forks[i].Err; err != nil {
			out[i].Error = &errorBody{statuses[outboard.KindOf(err)], outboard.PublicOf(err)}
			continue
		}
		out[i].Sandbox = new(s.show(r.Request, &forks[i].Box))
	}
	return http.StatusCreated, out, nil
}

// listRunning is the older list: everything that runs.
func (s *Server) listRunning(r *request) (int, any, error) {
	out, err := s.matching(r, []string{string(outboard.BoxRunning)})
	return http.StatusOK, out, err
}

// list is the list with states, order and pages.
func (s *Server) list(r *request) (int, any, error) {
	q := r.URL.Query()
	states := splitList(q["state"])
	all := []string{string(outboard.BoxRunning), string(outboard.BoxPaused)}
	if len(states) == 0 {
		states = all
	}
	for _, state := range states {
		if !slices.Contains(all, state) {
			return 0, nil, outboard.Errorf(outboard.Invalid, "state must be running, paused or running,paused, not %q",
				clip(state))
		}
	}
	order, err := r.oneOf("order", "desc", "asc")
	if err != nil {
		return 0, nil, err
	}
	out, err := s.matching(r, states)
	if err != nil {
		return 0, nil, err
	}
	if t := q.Get("template"); t != "" {
		id, err := s.templateID(r, t)
		if err != nil {
			return 0, nil, err
		}
		out = slices.DeleteFunc(out, func(b listedOut) bool { return b.TemplateID != id })
	}
	if after := q.Get("startedAfter"); after != "" {
		from, err := time.Parse(time.RFC3339Nano, after)
		if err != nil {
			return 0, nil, outboard.Errorf(outboard.Invalid, "startedAfter must be an RFC 3339 time")
		}
		out = slices.DeleteFunc(out, func(b listedOut) bool { return b.StartedAt.Before(from) })
	}
	if slices.Contains(states, string(outboard.BoxRunning)) {
		running := 0
		for i := range out {
			if out[i].State == string(outboard.BoxRunning) {
				running++
			}
		}
		r.w.Header().Set("X-Total-Running", strconv.Itoa(running))
	}
	key := func(b listedOut) pageKey { return pageKey{b.StartedAt, b.SandboxID} }
	out, err = page(r, out, key, order == "asc")
	return http.StatusOK, out, err
}

// templateID is what boxes say that began with a template or a snapshot, "" where there is none of the name.
func (s *Server) templateID(r *request, name string) (string, error) {
	ref, _, tagged := cutName(name)
	if tagged {
		return "", outboard.Errorf(outboard.Invalid, "template must be a name or an id, without a tag: sandboxes do "+
			"not say which tag they began with")
	}
	if ref == control.BaseTemplate {
		return ref, nil
	}
	n, err := s.ctl.Snapshot(r.Context(), r.by, ref)
	if err == nil {
		return string(n.ID), nil
	}
	if outboard.KindOf(err) != outboard.NotFound {
		return "", err
	}
	m, err := s.ctl.Template(r.Context(), r.by, ref)
	if outboard.KindOf(err) == outboard.NotFound {
		return "", nil
	}
	return string(m.ID), err
}

// matching returns the boxes of some states with the metadata that is asked for.
func (s *Server) matching(r *request, states []string) ([]listedOut, error) {
	want, err := metadataFilter(r.URL.Query().Get("metadata"))
	if err != nil {
		return nil, err
	}
	all, err := s.ctl.Boxes(r.Context(), r.by)
	if err != nil {
		return nil, err
	}
	out := []listedOut{}
	for i := range all {
		ok := slices.Contains(states, string(all[i].State))
		for k, v := range want {
			got, has := all[i].Metadata[k]
			ok = ok && has && got == v
		}
		if ok {
			out = append(out, listed(&all[i]))
		}
	}
	return out, nil
}

// metadataFilter reads pairs as the SDKs send them: each half encoded, and the query of them encoded again.
func metadataFilter(s string) (map[string]string, error) {
	out := map[string]string{}
	values, err := url.ParseQuery(s)
	if err != nil {
		return nil, outboard.Errorf(outboard.Invalid, "metadata is not a list of pairs: %w", err)
	}
	for k, vs := range values {
		key, err1 := url.QueryUnescape(k)
		value, err2 := url.QueryUnescape(vs[0])
		if err1 != nil || err2 != nil {
			return nil, outboard.Errorf(outboard.Invalid, "metadata: %q is not encoded", k)
		}
		out[key] = value
	}
	return out, nil
}

func splitList(values []string) []string {
	var out []string
	for _, v := range values {
		for part := range strings.SplitSeq(v, ",") {
			if part != "" {
				out = append(out, part)
			}
		}
	}
	return out
}

// pageKey orders a list.
type pageKey struct {
	at time.Time
	id string
}

func (k pageKey) compare(o pageKey) int { return cmp.Or(k.at.Compare(o.at), cmp.Compare(k.id, o.id)) }

// page cuts a list to what is asked for and names the rest in a header.
func page[T any](r *request, list []T, key func(T) pageKey, ascending bool) ([]T, error) {
	q := r.URL.Query()
	limit := 100
	if s := q.Get("limit"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > 100 {
			return nil, outboard.Errorf(outboard.Invalid, "limit must be 1 to 100")
		}
		limit = n
	}
	order := func(a, b pageKey) int {
		if ascending {
			return a.compare(b)
		}
		return b.compare(a)
	}
	slices.SortFunc(list, func(a, b T) int { return order(key(a), key(b)) })
	if token := q.Get("nextToken"); token != "" {
		raw, err := base64.RawURLEncoding.DecodeString(token)
		at, id, ok := strings.Cut(string(raw), "__")
		when, terr := time.Parse(time.RFC3339Nano, at)
		if err != nil || !ok || terr != nil {
			return nil, outboard.Errorf(outboard.Invalid, "nextToken is not one of this server's")
		}
		list = slices.DeleteFunc(list, func(v T) bool { return order(key(v), pageKey{when, id}) <= 0 })
	}
	if len(list) > limit {
		list = list[:limit]
		last := key(list[limit-1])
		r.w.Header().Set("X-Next-Token",
			base64.RawURLEncoding.EncodeToString([]byte(last.at.Format(time.RFC3339Nano)+"__"+last.id)))
	}
	return list, nil
}

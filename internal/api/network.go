package api

import (
	"encoding/json"
	"net"
	"strconv"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// ownNetworkIn is Outboard's own part of an environment's networking.
type ownNetworkIn struct {
	Rules  *[]outboard.NetRule `json:"rules"`
	Budget *outboard.NetBudget `json:"budget"`
	Ask    *outboard.NetAsk    `json:"ask"`
}

func decodeOwnNetwork(raw json.RawMessage) (func(*outboard.EnvConfig), error) {
	var in ownNetworkIn
	if err := object("config.outboard.networking", raw, &in); err != nil {
		return nil, err
	}
	return func(c *outboard.EnvConfig) {
		keep(&c.Networking.Rules, in.Rules)
		keep(&c.Networking.Budget, in.Budget)
		keep(&c.Networking.Ask, in.Ask)
	}, nil
}

type networkOut struct {
	Type   string                `json:"type"`
	Mode   string                `json:"networking"`
	Allow  []control.NetworkRule `json:"allow_list"`
	Grants []outboard.NetGrant   `json:"grants,omitempty"`
	Budget outboard.NetBudget    `json:"budget"`
	Used   outboard.NetBudget    `json:"used"`
	Ask    outboard.NetAsk       `json:"ask"`
	Denied []string              `json:"denied_networks,omitempty"`
	Except []string              `json:"denied_networks_except,omitempty"`

	Headers map[string][]string `json:"headers,omitempty"`
	Proxy   string              `json:"proxy,omitempty"` // of a box, without its credentials
}

func showNetwork(n control.Network) networkOut {
	return networkOut{Type: "outboard.network", Mode: n.Mode, Allow: some(n.Rules), Grants: n.Grants, Budget: n.Budget,
		Used: n.Used, Ask: n.Ask, Denied: n.Denied, Except: n.Except, Headers: n.Headers, Proxy: n.Proxy}
}

func (s *server) sessionNetwork(r *request) (any, error) {
	n, err := s.ctl.SessionNetwork(r.Context(), r.by, outboard.SessionID(r.PathValue("session")))
	if err != nil {
		return nil, err
	}
	return showNetwork(n), nil
}

func (s *server) environmentNetwork(r *request) (any, error) {
	n, err := s.ctl.EnvironmentNetwork(r.Context(), r.by, outboard.EnvironmentID(r.PathValue("environment")))
	if err != nil {
		return nil, err
	}
	return showNetwork(n), nil
}

type networkRecordOut struct {
	Type     string          `json:"type"`
	Num      int64           `json:"num"`
	At       string          `json:"at"`
	Request  string          `json:"request"`
	Decision string          `json:"decision"`
	Rule     string          `json:"rule"`
	Detail   json.RawMessage `json:"detail,omitempty"`

	// What request and detail say, taken apart.
	Method string `json:"method"`
	Host   string `json:"host"`
	Port   int    `json:"port"`
	Path   string `json:"path"`
	Reason string `json:"reason,omitempty"` // of a refusal
}

// takeApart fills in the parts of a record.
func (o *networkRecordOut) takeApart() {
	var detail struct {
		Reason string `json:"reason"`
	}
	_ = json.Unmarshal(o.Detail, &detail) // of a redacted record nothing is left
	o.Reason = detail.Reason
	method, address, _ := strings.Cut(o.Request, " ")
	o.Method = method
	scheme, rest, found := strings.Cut(address, "://")
	if !found {
		return
	}
	host, path, _ := strings.Cut(rest, "/")
	// the path is decoded: it is no URL
	o.Host, o.Port, o.Path = host, map[string]int{"http": 80, "https": 443}[scheme], "/"+path
	if name, port, err := net.SplitHostPort(host); err == nil {
		o.Host = name
		o.Port, _ = strconv.Atoi(port) // cannot fail: the gateway wrote it
	}
	o.Host = strings.Trim(o.Host, "[]")
}

// networkLog lists the requests of a session, newest first.
func (s *server) networkLog(r *request) (any, error) {
	return r.networkLog(func(before int64, limit int) ([]control.AuditRecord, error) {
		return s.ctl.NetworkLog(r.Context(), r.by, outboard.SessionID(r.PathValue("session")), before, limit)
	})
}

// networkLog answers with a page of requests, newest first. Its cursor is the number of its last record.
func (r *request) networkLog(read func(before int64, limit int) ([]control.AuditRecord, error)) (any, error) {
	limit, err := r.limit(otherPage, maxOtherPage)
	if err != nil {
		return nil, err
	}
	var before int64
	if p := r.query.Get("page"); p != "" {
		if before, err = strconv.ParseInt(p, 10, 64); err != nil || before < 1 {
			return nil, bad("page: %q is not a cursor of this list", clip(p))
		}
	}
	list, err := read(before, limit+1)
	if err != nil {
		return nil, err
	}
	out := listOut[networkRecordOut]{Data: []networkRecordOut{}}
	if len(list) > limit {
		list = list[:limit]
		next := strconv.FormatInt(list[limit-1].Num, 10)
		out.NextPage = &next
	}
	for _, a := range list {
		record := networkRecordOut{Type: "outboard.network.request", Num: a.Num, At: stamp(a.At), Request: a.Resource,
			Decision: a.Decision, Rule: a.Rule,
			Detail: json.RawMessage(a.Detail)}
		record.takeApart()
		out.Data = append(out.Data, record)
	}
	return out, nil
}

// disallowNetwork ends what allowNetwork let a session reach.
func (s *server) disallowNetwork(r *request) (any, error) {
	var port int
	var err error
	if text := r.query.Get("port"); text != "" {
		if port, err = strconv.Atoi(text); err != nil {
			return nil, bad("port: %q is not a number", clip(text))
		}
	}
	host := canonicalHost(r.query.Get("host"))
	out, err := s.ctl.DisallowNetwork(r.Context(), r.by, outboard.SessionID(r.PathValue("session")), host, port,
		r.query.Get("rule") == "true")
	if err != nil {
		return nil, err
	}
	return struct {
		Type   string `json:"type"`
		Host   string `json:"host"`
		Port   int    `json:"port"`
		Grants int    `json:"grants"`
		Rule   bool   `json:"rule"`
	}{"outboard.network.disallowed", host, port, out.Grants, out.Rule}, nil
}

func canonicalHost(s string) string { return strings.TrimSuffix(strings.ToLower(s), ".") }

// allowNetwork lets a session reach a host.
func (s *server) allowNetwork(r *request) (any, error) {
	var in struct {
		Host      string `json:"host"`
		Port      int    `json:"port"`
		Scope     string `json:"scope"`
		WebSocket bool   `json:"websocket"`
	}
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	if in.Scope == "" {
		in.Scope = control.AllowSession
	}
	g, err := s.ctl.AllowNetwork(r.Context(), r.by, outboard.SessionID(r.PathValue("session")),
		outboard.NetRule{Host: canonicalHost(in.Host), Port: in.Port, WebSocket: in.WebSocket}, in.Scope)
	if err != nil {
		return nil, err
	}
	return struct {
		Type string `json:"type"`
		outboard.NetGrant
	}{"outboard.network.grant", g}, nil
}

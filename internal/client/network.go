package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"

	"github.com/outboard-dev/outboard"
)

// Network is what a session may reach.
type Network struct {
	Type  string `json:"type"`
	Mode  string `json:"networking"`
	Allow []struct {
		outboard.NetRule
		Source string `json:"source"`
	} `json:"allow_list"`
	Grants []outboard.NetGrant `json:"grants"`
	Budget outboard.NetBudget  `json:"budget"`
	Used   outboard.NetBudget  `json:"used"`
	Ask    outboard.NetAsk     `json:"ask"`
	Proxy  string              `json:"proxy,omitempty"` // that the requests of a box go through
}

// NetworkRecord is one request that a session made.
type NetworkRecord struct {
	Type     string          `json:"type"`
	Num      int64           `json:"num"`
	At       string          `json:"at"`
	Request  string          `json:"request"`
	Decision string          `json:"decision"`
	Rule     string          `json:"rule"`
	Detail   json.RawMessage `json:"detail"`
	Method   string          `json:"method"`
	Host     string          `json:"host"`
	Port     int             `json:"port"`
	Path     string          `json:"path"`
	Reason   string          `json:"reason"` // of a refusal
}

// NetworkGrant is a host that somebody let a session reach.
type NetworkGrant struct {
	Type string `json:"type"`
	outboard.NetGrant
}

func networkPath(session string) string {
	return "/v1/sessions/" + url.PathEscape(session) + "/outboard/network"
}

// Network returns everything a session may reach.
func (c *Client) Network(ctx context.Context, session string) (n Network, err error) {
	return n, c.call(ctx, http.MethodGet, networkPath(session), nil, nil, &n)
}

// BoxNetwork returns everything a box may reach.
func (c *Client) BoxNetwork(ctx context.Context, box string) (n Network, err error) {
	return n, c.call(ctx, http.MethodGet, boxPath(box, "/network"), nil, nil, &n)
}

// NetworkLog returns the newest requests of a session, newest first.
func (c *Client) NetworkLog(ctx context.Context, session string, most int) ([]NetworkRecord, error) {
	return c.networkLog(ctx, networkPath(session)+"/log", most)
}

// BoxNetworkLog is NetworkLog for a box.
func (c *Client) BoxNetworkLog(ctx context.Context, box string, most int) ([]NetworkRecord, error) {
	return c.networkLog(ctx, boxPath(box, "/network/log"), most)
}

func (c *Client) networkLog(ctx context.Context, path string, most int) ([]NetworkRecord, error) {
	var out []NetworkRecord
	for r, err := range pages[NetworkRecord](ctx, c, path,
		url.Values{"limit": {strconv.Itoa(max(1, min(most, 100)))}}) {
		if err != nil {
			return out, err
		}
		if out = append(out, r); len(out) >= most {
			break
		}
	}
	return out, nil
}

// NetworkDisallowed is what DisallowNetwork ended.
type NetworkDisallowed struct {
	Type   string `json:"type"`
	Host   string `json:"host"`
	Port   int    `json:"port"`
	Grants int    `json:"grants"` // of the session
	Rule   bool   `json:"rule"`   // of its environment
}

// DisallowNetwork ends what AllowNetwork, or an answer, let a session reach; with rule also the rule of its
// environment.
func (c *Client) DisallowNetwork(ctx context.Context, session, host string, port int,
	rule bool) (d NetworkDisallowed, err error) {
	q := url.Values{"host": {host}, "port": {strconv.Itoa(port)}, "rule": {strconv.FormatBool(rule)}}
	return d, c.call(ctx, http.MethodDelete, networkPath(session)+"/allow", q, nil, &d)
}

// NetworkAllow is a host to let a session reach: once, for the session, or as a rule of its environment.
type NetworkAllow struct {
	Host      string `json:"host"`
	Port      int    `json:"port"` // 0 = 80 and 443
	Scope     string `json:"scope"`
	WebSocket bool   `json:"websocket,omitempty"`
}

// AllowNetwork lets a session reach a host.
func (c *Client) AllowNetwork(ctx context.Context, session string, in NetworkAllow) (g NetworkGrant, err error) {
	return g, c.call(ctx, http.MethodPost, networkPath(session)+"/allow", nil, in, &g)
}

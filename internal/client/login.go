package client

import (
	"context"
	"net/http"
)

// LoginStart begins a sign-in: what the client chose at random, and where the browser is sent back to.
type LoginStart struct {
	Redirect  string `json:"redirect_uri"`
	State     string `json:"state"`
	Nonce     string `json:"nonce"`
	Challenge string `json:"code_challenge"`
}

// LoginPage is where a person signs in.
type LoginPage struct {
	URL    string `json:"url"`
	Issuer string `json:"issuer"`
}

// LoginAnswer is what came back, and what the sign-in began with.
type LoginAnswer struct {
	Code     string `json:"code"`
	Redirect string `json:"redirect_uri"`
	Verifier string `json:"code_verifier"`
	Nonce    string `json:"nonce"`
	Org      string `json:"organization,omitempty"`
}

// Login is a person who signed in, and their key.
type Login struct {
	User User `json:"user"`
	Key  Key  `json:"key"`
}

// StartLogin asks where to sign in. It needs no key.
func (c *Client) StartLogin(ctx context.Context, s LoginStart) (out LoginPage, err error) {
	return out, c.call(ctx, http.MethodPost, "/v1/outboard/login/start", nil, s, &out)
}

// FinishLogin exchanges what came back for a key. It needs no key.
func (c *Client) FinishLogin(ctx context.Context, a LoginAnswer) (out Login, err error) {
	return out, c.call(ctx, http.MethodPost, "/v1/outboard/login", nil, a, &out)
}

// RenewLogin moves the end of the login that is this client's key.
func (c *Client) RenewLogin(ctx context.Context) (out Login, err error) {
	return out, c.call(ctx, http.MethodPost, "/v1/outboard/login/renew", nil, struct{}{}, &out)
}

// LoginDevice is a sign-in on another device: the person opens URL there and types User. Code is this client's,
// and secret.
type LoginDevice struct {
	Code   string `json:"device_code"`
	User   string `json:"user_code"`
	URL    string `json:"verification_uri"`
	Whole  string `json:"verification_uri_complete"`
	Lasts  int    `json:"expires_in"` // seconds
	Every  int    `json:"interval"`   // seconds between two questions
	Issuer string `json:"issuer"`
}

// DeviceAnswer is a login, or that nobody has signed in yet: Type "login_pending".
type DeviceAnswer struct {
	Type     string `json:"type"`
	SlowDown bool   `json:"slow_down"` // ask less often
	Login
}

// StartDevice begins a sign-in on another device. It needs no key.
func (c *Client) StartDevice(ctx context.Context) (out LoginDevice, err error) {
	return out, c.call(ctx, http.MethodPost, "/v1/outboard/login/device", nil, struct{}{}, &out)
}

// FinishDevice asks whether somebody has signed in. It needs no key.
func (c *Client) FinishDevice(ctx context.Context, code, org string) (out DeviceAnswer, err error) {
	in := map[string]string{"device_code": code}
	if org != "" {
		in["organization"] = org
	}
	return out, c.call(ctx, http.MethodPost, "/v1/outboard/login/device/token", nil, in, &out)
}

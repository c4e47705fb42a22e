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

package api_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

type obj = map[string]any

func (b *bench) vault() string {
	return b.ok("POST", "/v1/vaults", obj{"display_name": "v", "metadata": obj{"team": "a"}}).str("id")
}

func (b *bench) credential(vault string, auth obj) reply {
	b.t.Helper()
	return b.ok("POST", "/v1/vaults/"+vault+"/credentials", obj{"display_name": "c", "auth": auth})
}

// variable is an environment_variable credential.
func variable(name string) obj {
	return obj{"type": "environment_variable", "secret_name": name, "secret_value": "s3cret-value",
		"networking": obj{"type": "limited", "allowed_hosts": []string{"api.example.com"}}}
}

// Fails if a vault cannot be made, changed, listed, archived with all it holds, and deleted through the wire.
func TestVaults(t *testing.T) {
	b := newBench(t)
	id := b.vault()
	got := b.ok("GET", "/v1/vaults/"+id, nil)
	if got.str("type") != "vault" || got.str("display_name") != "v" || got.str("metadata.team") != "a" ||
		got.get("archived_at") != nil {
		t.Errorf("a vault: %s", got.body)
	}
	got = b.ok("POST", "/v1/vaults/"+id, obj{"display_name": "w", "metadata": obj{"team": nil, "x": "y"}})
	if got.str("display_name") != "w" || got.get("metadata.team") != nil || got.str("metadata.x") != "y" {
		t.Errorf("updated: %s", got.body)
	}
	cred := b.credential(id, variable("TOKEN")).str("id")
	if n := len(b.ok("GET", "/v1/vaults", nil).get("data").([]any)); n != 1 {
		t.Errorf("%d vaults in the list", n)
	}
	if got := b.ok("POST", "/v1/vaults/"+id+"/archive", nil); got.str("archived_at") == "" {
		t.Errorf("archived: %s", got.body)
	}
	if got := b.ok("GET", "/v1/vaults/"+id+"/credentials/"+cred, nil); got.str("archived_at") == "" {
		t.Errorf("a credential of an archived vault: %s", got.body)
	}
	if n := len(b.ok("GET", "/v1/vaults", nil).get("data").([]any)); n != 0 {
		t.Errorf("%d vaults in the list, the archived one among them", n)
	}
	b.refused(400, "archived", "POST", "/v1/vaults/"+id, obj{"display_name": "x"})
	b.refused(400, "archived", "POST", "/v1/vaults/"+id+"/credentials", obj{"auth": variable("OTHER")})
	if got := b.ok("DELETE", "/v1/vaults/"+id, nil); got.str("type") != "vault_deleted" || got.str("id") != id {
		t.Errorf("deleted: %s", got.body)
	}
	b.refused(404, "there is no vault", "GET", "/v1/vaults/"+id, nil)
}

// Fails if a kind of credential cannot be made or is shown wrong, or if any answer repeats a secret.
func TestCredentialKinds(t *testing.T) {
	b := newBench(t)
	pem := testKey(t)
	for name, c := range map[string]struct {
		auth   obj
		shown  map[string]any
		update obj
		after  map[string]any
	}{
		"environment_variable": {variable("TOKEN"),
			map[string]any{"secret_name": "TOKEN", "networking.type": "limited",
				"networking.allowed_hosts.0": "api.example.com", "injection_location.header": true, "injection_location.body": true},
			obj{"secret_value": "n3w-s3cret", "networking": obj{"type": "unrestricted"},
				"injection_location": obj{"body": false}},
			map[string]any{"networking.type": "unrestricted", "injection_location.header": true,
				"injection_location.body": false}},
		"static_bearer": {obj{"type": "static_bearer", "mcp_server_url": "https://mcp.example.com/x",
			"token": "s3cret-value"},
			map[string]any{"mcp_server_url": "https://mcp.example.com/x"}, obj{"token": "n3w-s3cret"}, nil},
		"mcp_oauth": {obj{"type": "mcp_oauth", "mcp_server_url": "https://mcp.example.com/y",
			"access_token": "s3cret-value", "expires_at": "2099-01-01T00:00:00Z",
			"refresh": obj{"refresh_token": "r3fr-s3cret", "token_endpoint": "https://auth.example.com/token",
				"client_id": "id", "scope": "a b",
				"token_endpoint_auth": obj{"type": "client_secret_post", "client_secret": "cl13nt-s3cret"}}},
			map[string]any{"expires_at": "2099-01-01T00:00:00.000000Z",
				"refresh.token_endpoint": "https://auth.example.com/token", "refresh.client_id": "id",
				"refresh.scope": "a b", "refresh.resource": nil, "refresh.token_endpoint_auth.type": "client_secret_post"},
			obj{"access_token": "n3w-s3cret", "refresh": obj{"scope": "",
				"refresh_token": "n3w-s3cret"}}, map[string]any{"refresh.scope": nil, "refresh.client_id": "id"}},
		"outboard_header": {obj{"type": "outboard_header", "name": "gh", "value": "s3cret-value",
			"hosts": []string{"*.example.com"}, "methods": []string{"GET"}, "paths": []string{"/v1/**"}},
			map[string]any{"name": "gh", "header": "Authorization", "format": "Bearer {secret}",
				"paths.0": "/v1/**"}, obj{"value": "n3w-s3cret", "methods": []string{}}, nil},
		"outboard_aws": {obj{"type": "outboard_aws", "name": "s3", "access_key_id": "AKIAs3cret",
			"secret_access_key": "s3cret-value", "service": "s3", "region": "eu-central-1", "hosts": []string{"b.s3.eu-central-1.amazonaws.com"}},
			map[string]any{"service": "s3", "region": "eu-central-1"}, obj{"secret_access_key": "n3w-s3cret"}, nil},
		"outboard_github_app": {obj{"type": "outboard_github_app", "name": "app", "app_id": 1, "installation_id": 2,
			"private_key": pem, "repositories": []string{"o/r"}, "permissions": obj{"contents": "read"}},
			map[string]any{"hosts.0": "api.github.com", "repositories.0": "o/r", "permissions.contents": "read",
				"api_url": "https://api.github.com"}, obj{"permissions": obj{"contents": "write"}}, map[string]any{"permissions.contents": "write"}},
	} {
		t.Run(name, func(t *testing.T) {
			b.t = t
			vault := b.vault()
			check := func(r reply, want map[string]any) {
				t.Helper()
				if r.str("type") != "vault_credential" || r.str("vault_id") != vault || r.str("auth.type") != name {
					t.Errorf("shown as %s", r.body)
				}
				for path, v := range want {
					if got := r.get("auth." + path); got != v {
						t.Errorf("auth.%s is %v, want %v", path, got, v)
					}
				}
				for _, s := range []string{"s3cret", "PRIVATE"} {
					if strings.Contains(string(r.body), s) {
						t.Errorf("a secret is shown: %s", r.body)
					}
				}
			}
			made := b.credential(vault, c.auth)
			check(made, c.shown)
			path := "/v1/vaults/" + vault + "/credentials/" + made.str("id")
			check(b.ok("GET", path, nil), c.shown)
			c.update["type"] = name
			check(b.ok("POST", path, obj{"auth": c.update, "display_name": nil}), c.after)
			list := b.ok("GET", "/v1/vaults/"+vault+"/credentials", nil)
			if list.str("data.0.id") != made.str("id") || strings.Contains(string(list.body), "s3cret") {
				t.Errorf("the list: %s", list.body)
			}
			b.refused(409, "already", "POST", "/v1/vaults/"+vault+"/credentials", obj{"auth": c.auth})
			check(b.ok("POST", path+"/archive", nil), nil)
			b.refused(400, "archived", "POST", path, obj{"display_name": "x"})
			b.credential(vault, c.auth) // its key is free again
			if got := b.ok("DELETE", path, nil); got.str("type") != "vault_credential_deleted" {
				t.Errorf("deleted: %s", got.body)
			}
			b.refused(404, "there is no credential", "GET", path, nil)
			b.refused(404, "there is no credential", "GET", "/v1/vaults/"+b.vault()+"/credentials/"+made.str("id"), nil)
		})
	}
}

// Fails if a credential that could go anywhere, break out of a header or name something unknown is accepted, or
// if a refusal repeats a secret.
func TestBadCredentials(t *testing.T) {
	b := newBench(t)
	vault := b.vault()
	b.credential(vault, variable("GOOD")) // positive control
	pem := variable("PEM")
	pem["secret_value"], pem["injection_location"] = "-----BEGIN KEY-----\ns3cret\n-----END KEY-----\n", obj{"header": false, "body": true}
	b.credential(b.vault(), pem)
	places := variable("PLACES")
	places["injection_location"] = obj{"header": false, "body": false, "path": true, "query": true}
	if got := b.credential(b.vault(), places); !strings.Contains(string(got.body), `"path":true,"query":true`) {
		t.Errorf("path and query: %s", got.body)
	}
	with := func(base obj, change obj) obj {
		out := obj{}
		maps.Copy(out, base)
		for k, v := range change {
			out[k] = v
			if v == nil {
				delete(out, k)
			}
		}
		return out
	}
	head := obj{"type": "outboard_header", "name": "n", "value": "s3cret-value", "hosts": []string{"a.example.com"}}
	bearer := obj{"type": "static_bearer", "mcp_server_url": "https://a.example.com", "token": "s3cret-value"}
	for i, c := range []struct {
		word string
		auth obj
	}{
		{"auth.type", obj{"type": "magic", "value": "s3cret-value"}},
		{"unknown field", with(bearer, obj{"s3cret": "s3cret-value"})},
		{"token", with(bearer, obj{"token": nil})},
		{"control characters", with(bearer, obj{"token": "s3cret-value\n"})},
		{"control characters", with(bearer, obj{"token": "s3cret\r\nX-Evil: 1"})},
		{"at most 8192", with(bearer, obj{"token": strings.Repeat("s3cret", 1500)})},
		{"https", with(bearer, obj{"mcp_server_url": "http://a.example.com"})},
		{"https", with(bearer, obj{"mcp_server_url": "https://user:s3cret@a.example.com"})},
		{"https", with(bearer, obj{"mcp_server_url": "javascript:alert(1)"})},
		{"secret_name", with(variable("X"), obj{"secret_name": "lower"})},
		{"itself needs", with(variable("X"), obj{"secret_name": "LD_PRELOAD"})},
		{"itself needs", with(variable("X"), obj{"secret_name": "HTTPS_PROXY"})},
		{"itself needs", with(variable("X"), obj{"secret_name": "PIP_CERT"})},
		{"itself needs", with(variable("X"), obj{"secret_name": "CARGO_HTTP_CAINFO"})},
		{"itself needs", with(variable("X"), obj{"secret_name": "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"})},
		{"at most 4096", with(variable("X"), obj{"secret_value": strings.Repeat("s3cret", 1000)})},
		{"networking", with(variable("X"), obj{"networking": nil})},
		{"allowed_hosts", with(variable("X"), obj{"networking": obj{"type": "limited", "allowed_hosts": []string{}}})},
		{"host", with(variable("X"),
			obj{"networking": obj{"type": "limited", "allowed_hosts": []string{"https://a.example.com"}}})},
		{"host", with(variable("X"), obj{"networking": obj{"type": "limited", "allowed_hosts": []string{"*"}}})},
		{"host", with(variable("X"), obj{"networking": obj{"type": "limited", "allowed_hosts": []string{"*.com"}}})},
		{"at most 16", with(variable("X"),
			obj{"networking": obj{"type": "limited",
				"allowed_hosts": strings.Split(strings.Repeat("a.example.com,", 16)+"b.example.com", ",")}})},
		{"injection_location", with(variable("X"), obj{"injection_location": obj{}})},
		{"injection_location", with(variable("X"), obj{"injection_location": obj{"header": false, "body": false}})},
		{"several lines", with(variable("X"), obj{"secret_value": "s3cret\nvalue"})},
		{"several lines", with(variable("X"), obj{"secret_value": "s3cret\nvalue",
			"injection_location": obj{"header": true, "body": true}})},
		{"control characters",
			with(variable("X"), obj{"secret_value": "s3cret\x00value",
				"injection_location": obj{"header": false, "body": true}})},
		{"hosts", with(head, obj{"hosts": []string{}})},
		{"header", with(head, obj{"header": "Host"})},
		{"header", with(head, obj{"header": "X-A: b\r\nc"})},
		{"format", with(head, obj{"format": "constant"})},
		{"format", with(head, obj{"format": "{secret}\r\nX-Evil: 1"})},
		{"paths", with(head, obj{"paths": []string{"/a/../b"}})},
		{"paths", with(head, obj{"paths": []string{"a"}})},
		{"paths", with(head, obj{"paths": []string{"/%2e%2e/"}})},
		{"methods", with(head, obj{"methods": []string{"get"}})},
		{"port", with(head, obj{"ports": []int{0}})},
		{"sts", obj{"type": "outboard_aws", "name": "s", "access_key_id": "A", "secret_access_key": "s3cret-value",
			"service": "sts", "region": "us-east-1", "hosts": []string{"sts.amazonaws.com"}}},
		{"must be a registry", obj{"type": "outboard_aws", "name": "s", "access_key_id": "A",
			"secret_access_key": "s3cret-value", "service": "ecr", "region": "us-east-1", "hosts": []string{"api.ecr.us-east-1.amazonaws.com"}}},
		{"must be a registry", obj{"type": "outboard_aws", "name": "s", "access_key_id": "A",
			"secret_access_key": "s3cret-value", "service": "ecr", "region": "us-east-1", "hosts": []string{"*.dkr.ecr.us-east-1.amazonaws.com"}}},
		{"region eu-west-1", obj{"type": "outboard_aws", "name": "s", "access_key_id": "A",
			"secret_access_key": "s3cret-value", "service": "ecr", "region": "us-east-1", "hosts": []string{"123456789012.dkr.ecr.eu-west-1.amazonaws.com"}}},
		{"RSA", obj{"type": "outboard_github_app", "name": "a", "app_id": 1, "installation_id": 1,
			"private_key": "s3cret-value", "repositories": []string{"o/r"}, "permissions": obj{"contents": "read"}}},
	} {
		got := b.refused(400, c.word, "POST", "/v1/vaults/"+vault+"/credentials", obj{"auth": c.auth})
		if strings.Contains(strings.ReplaceAll(string(got.body), `unknown field`, ""), "s3cret-value") {
			t.Errorf("%d: the refusal repeats a secret: %s", i, got.body)
		}
	}
	b.ok("POST", "/v1/vaults/"+b.vault()+"/credentials",
		obj{"auth": obj{"type": "outboard_aws", "name": "s", "access_key_id": "A", "secret_access_key": "s3cret-value",
			"service": "ecr",
			"region":  "us-east-1", "hosts": []string{"123456789012.dkr.ecr.us-east-1.amazonaws.com"}}}) // the control
	c := b.credential(vault, bearer)
	path := "/v1/vaults/" + vault + "/credentials/" + c.str("id")
	b.refused(400, "cannot change", "POST", path,
		obj{"auth": obj{"type": "static_bearer", "mcp_server_url": "https://b.example.com"}})
	b.refused(400, "cannot change", "POST", path, obj{"auth": variable("X")})
	b.refused(400, "mcp_oauth", "POST", path+"/mcp_oauth_validate", nil)
	for i := range 18 {
		b.credential(vault, variable(fmt.Sprintf("V%d", i)))
	}
	b.refused(400, "20 credentials", "POST", "/v1/vaults/"+vault+"/credentials", obj{"auth": variable("ONE_TOO_MANY")})
}

// Fails if a session starts with a vault that it may not have, or does not show those it has.
func TestSessionVaults(t *testing.T) {
	b := newBench(t)
	one, two := b.vault(), b.vault()
	start := func(vaults ...string) obj {
		return obj{"agent": b.agent(), "environment_id": b.environment(), "vault_ids": vaults}
	}
	got := b.ok("POST", "/v1/sessions", start(two, one))
	if got.str("vault_ids.0") != two || got.str("vault_ids.1") != one {
		t.Errorf("a session's vaults: %s", got.body)
	}
	b.refused(404, "there is no vault", "POST", "/v1/sessions", start("vlt_011111111111111111111111"))
	b.refused(400, "twice", "POST", "/v1/sessions", start(one, one))
	b.ok("POST", "/v1/vaults/"+one+"/archive", nil)
	b.refused(400, "archived", "POST", "/v1/sessions", start(one))
}

// Fails if validation says that a dead token lives, does not try the refresh token, or shows a token.
func TestValidate(t *testing.T) {
	b := newBench(t)
	mux := http.NewServeMux()
	srv := httptest.NewServer(mux)
	defer srv.Close()
	mux.HandleFunc("POST /mcp", func(w http.ResponseWriter, r *http.Request) {
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !strings.HasPrefix(token, "live-") {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprintf(w, "no use for %s", token)
			return
		}
		fmt.Fprint(w, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	})
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("refresh_token") != "refresh-s3cret" {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"error":"invalid_grant"}`)
			return
		}
		fmt.Fprint(w, `{"access_token":"live-s3cret-2","expires_in":3600}`)
	})
	try := func(token, refresh string) reply {
		auth := obj{"type": "mcp_oauth", "mcp_server_url": srv.URL + "/mcp", "access_token": token}
		if refresh != "" {
			auth["refresh"] = obj{"refresh_token": refresh, "token_endpoint": srv.URL + "/token", "client_id": "id",
				"token_endpoint_auth": obj{"type": "none"}}
		}
		vault := b.vault()
		got := b.ok("POST", "/v1/vaults/"+vault+"/credentials/"+b.credential(vault,
			auth).str("id")+"/mcp_oauth_validate", nil)
		if strings.Contains(string(got.body), "s3cret") || got.str("type") != "vault_credential_validation" {
			t.Errorf("validation shows %s", got.body)
		}
		return got
	}
	if got := try("live-s3cret", ""); got.str("status") != "valid" || got.get("mcp_probe") != nil ||
		got.get("refresh") != nil || got.get("has_refresh_token") != false {
		t.Errorf("a living token: %s", got.body)
	}
	if got := try("dead-s3cret", ""); got.str("status") != "invalid" || got.str("mcp_probe.method") != "initialize" ||
		got.get("mcp_probe.http_response.status_code") != 401.0 || got.str("refresh.status") != "no_refresh_token" {
		t.Errorf("a dead token: %s", got.body)
	}
	if got := try("dead-s3cret", "refresh-s3cret"); got.str("status") != "valid" ||
		got.str("refresh.status") != "succeeded" {
		t.Errorf("a dead token that can be renewed: %s", got.body)
	}
	if got := try("dead-s3cret", "stale-s3cret"); got.str("status") != "invalid" ||
		got.str("refresh.status") != "failed" || got.get("refresh.http_response.status_code") != 400.0 {
		t.Errorf("a dead token that cannot: %s", got.body)
	}
}

// Fails if the test of a credential says it is used where it is not, or the other way, or if keys cannot be
// rotated by the wire.
func TestCredentialTest(t *testing.T) {
	b := newBench(t)
	vault := b.vault()
	path := "/v1/vaults/" + vault + "/credentials/" +
		b.credential(vault, obj{"type": "outboard_header", "name": "n", "value": "s3cret-value",
			"hosts": []string{"api.example.com"}, "methods": []string{"GET"}, "paths": []string{"/v1/**"}}).str("id") +
		"/outboard/test"
	for _, rotated := range []bool{false, true} {
		if rotated {
			if got := b.ok("POST", "/v1/outboard/vault_keys/rotate", nil); got.get("credentials") != 1.0 {
				t.Errorf("rotated: %s", got.body)
			}
		}
		for _, c := range []struct{ method, url, reason string }{
			{"GET", "https://api.example.com/v1/a", ""},
			{"get", "https://API.example.com./v1/a/b", ""},
			{"POST", "https://api.example.com/v1/a", "method"},
			{"GET", "https://api.example.com/v2", "path"},
			{"GET", "https://api.example.com/v1/../v2", "path"},
			{"GET", "http://api.example.com/v1/a", "port 443"},
			{"GET", "https://api.example.com:8443/v1/a", "port 443"},
			{"GET", "https://evil-api.example.com/v1/a", "host"},
		} {
			got := b.ok("POST", path, obj{"method": c.method, "url": c.url})
			if got.get("used") != (c.reason == "") || !strings.Contains(got.str("reason"), c.reason) {
				t.Errorf("%s %s: %s", c.method, c.url, got.body)
			}
		}
	}
	b.refused(400, "URL", "POST", path, obj{"method": "GET", "url": "nothing"})
}

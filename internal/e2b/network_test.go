package e2b

import (
	"encoding/json"
	"testing"

	"github.com/outboard-dev/outboard"
)

// If this fails, a setting of an SDK means something else here, or one that is not held is taken as if it were.
func TestNetworkSettings(t *testing.T) {
	for body, want := range map[string]string{
		`{}`:                                   `{}`,
		`{"allow_internet_access":true}`:       `{}`,
		`{"allow_internet_access":false}`:      `{"closed":true}`,
		`{"denyOut":["0.0.0.0/0"]}`:            `{"closed":true}`,
		`{"denyOut":["1.2.3.4","10.1.0.0/8"]}`: `{"deny":["1.2.3.4/32","10.0.0.0/8"]}`,
		`{"denyOut":["0.0.0.0/0","10.0.0.0/8"],"allowOut":["A.test","*.b.test","1.2.3.4","1.2.3.5/32"]}`: `{"closed":true,"allow":["a.test","*.b.test","1.2.3.4","1.2.3.5"]}`,
		`{"denyOut":["0.0.0.0/0"],"allowOut":["0.0.0.0/0"]}`:                                             `{"closed":true,"allow":["*"]}`,
		`{"allow_internet_access":false,"allowOut":["a.test"]}`:                                          `{"closed":true,"allow":["a.test"]}`,
		`{"allowOut":["1.2.3.4"]}`:                                                                       `{}`,
		`{"allowOut":["a.test"]}`:                                                                        "invalid",
		`{"denyOut":["a.test"]}`:                                                                         "invalid",
		`{"allowOut":["a.test"],"denyOut":["10.0.0.0/8"]}`:                                               "invalid",
		`{"allowOut":["10.1.2.3","10.2.9.9/16"],"denyOut":["10.0.0.0/8"]}`:                               `{"allow":["10.1.2.3","10.2.0.0/16"],"deny":["10.0.0.0/8"]}`,
		`{"allowOut":["8.8.1.0/16","b.test"],"denyOut":["0.0.0.0/0"]}`:                                   `{"closed":true,"allow":["8.8.0.0/16","b.test"]}`,
		`{"allowOut":["::ffff:8.8.0.0/112"],"denyOut":["::ffff:10.0.0.0/104"]}`:                          `{"allow":["8.8.0.0/16"],"deny":["10.0.0.0/8"]}`,
		`{"allowOut":["0.0.0.0/0"],"denyOut":["10.0.0.0/8"]}`:                                            `{}`,
		`{"egressProxy":{"address":"a.test:1","username":"u"}}`:                                          `{"proxy":{"address":"a.test:1","username":"u"}}`,
		`{"egressProxy":{"address":"a.test:1","username":"u","password":"hunter2"},"denyOut":["0.0.0.0/0"],"allowOut":["b.test"]}`: `{"closed":true,"allow":["b.test"],"proxy":{"address":"a.test:1","username":"u","password":true}}`,
		`{"egressProxy":{}}`: "invalid",
		`{"egressProxy":{"address":"a.test:1"},"allow_internet_access":false}`:                       "invalid",
		`{"egressProxy":{"address":"a.test:1"},"allow_internet_access":false,"allowOut":["b.test"]}`: "invalid",
		`{"rules":{"a.test":[{"transform":{"headers":{"A":"b"}}}]}}`:                                 `{}`,
		`{"rules":{"a.test":[{"transform":{"headers":{},"body":{}}}]}}`:                              "unimplemented",
		`{"rules":{"a.test":[{"transform":{"headers":{}},"deny":{}}]}}`:                              "unimplemented",
		`{"rules":{"a.test":[{"transform":{"headers":{"A":"${e2b.secrets.x}"}}}]}}`:                  "unimplemented",
		`{"rules":{"a.test":[{"transform":{"headers":{"A":"[secret]"}}}]}}`:                          "invalid",
		`{"rules":{"a.test":[{"transform":{"headers":{"A":1}}}]}}`:                                   "invalid",
		`{"rules":{"a.test":[]}}`:                         "invalid",
		`{"rules":{"a.test":[{},{}]}}`:                    "invalid",
		`{"rules":{"a.test":[{}],"A.test":[{}]}}`:         "invalid",
		`{"httpsPorts":[8443]}`:                           `{}`,
		`{"egressProxy":null,"rules":{},"httpsPorts":[]}`: `{}`,
	} {
		var in struct {
			networkIn
			AllowInternet *bool `json:"allow_internet_access"`
		}
		if err := json.Unmarshal([]byte(body), &in); err != nil {
			t.Fatal(err)
		}
		n, err := in.settings(in.AllowInternet)
		if _, wrong := in.Rules.headers(); wrong != nil {
			err = wrong
		}
		got := string(outboard.KindOf(err))
		if err == nil {
			text, _ := json.Marshal(n)
			got = string(text)
		}
		if got != want {
			t.Errorf("%s: %s, want %s (%v)", body, got, want, err)
		}
	}
}

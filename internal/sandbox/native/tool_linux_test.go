package native

import (
	"strings"
	"testing"
)

// If this failed, an image's account file would make tools somebody whom it must not, or stop them from being
// whom it says.
func TestToolOf(t *testing.T) {
	const passwd = "root:x:0:0:::\ntoor:x:0:0:::\napp:x:4242:4343::/srv/app:/bin/sh\nwheel:x:5:0:::\nnode:x:1000:1000:::\nfar:x:65536:1:::\nodd\x1b[m:x:70:70:::\n" +
		"negative:x:-5:-5:::\nwords:x:a:b:::\nshort:x:9:9\nshift:x:80:65536:::\n"
	for user, want := range map[string]tool{
		"app": {"app", 4242, 4343}, "4242": {"app", 4242, 4343}, "777": {"777", 777, 777}, "node": {"node", 1000,
			1000}, "1000": {"node", 1000, 1000},
		"": {}, "root": {}, "0": {}, "00": {}, "toor": {}, "user": {},
		"wheel": {"wheel", 5, 5}, "shift": {"shift", 80, 80}, "70": {"70", 70, 70},
	} {
		if got, err := toolOf(user, passwd); err != nil || got != want || got.uid() == 0 || got.gid() == 0 {
			t.Errorf("%q is %+v, %v; want %+v", user, got, err, want)
		}
	}
	if got, err := toolOf("user", passwd+toolPasswd); err != nil || got != (tool{}) {
		t.Errorf("the sandbox's own user is %+v, %v", got, err)
	}
	for user, want := range map[string]string{"far": "whose id is 65536", "65536": "whose id is 65536",
		"negative": "whose id is -5", "-3": "whose id is -3",
		"words": `the ids "a" and "b"`, "short": "no such user", "nobody": "no such user"} {
		if got, err := toolOf(user, passwd); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is %+v, %v; want ...%s...", user, got, err, want)
		}
	}
}

package native

import (
	"fmt"
	"strconv"
	"strings"
)

// tool is a user of a root file system that tools run as in place of the sandbox's own. The zero value is the
// sandbox's own.
type tool struct {
	Name string `json:"name"`
	UID  int    `json:"uid"`
	GID  int    `json:"gid"`
}

func (t tool) uid() int {
	if t.UID == 0 {
		return toolUID
	}
	return t.UID
}

func (t tool) gid() int {
	if t.GID == 0 {
		return toolUID
	}
	return t.GID
}

// toolOf finds a user in an account file, by name or by number, which needs no name. Root is never a tool: it is
// the guest, whose receipts and processes no tool may touch. So is the group of root, in place of which a user
// has one of its own number.
func toolOf(user, passwd string) (tool, error) {
	number, nerr := strconv.Atoi(user)
	if user == "" || user == "root" || nerr == nil && number == 0 {
		return tool{}, nil
	}
	t, found := tool{Name: user, UID: number, GID: number}, nerr == nil
	for line := range strings.Lines(passwd) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) != 7 || f[0] != user && (nerr != nil || f[2] != strconv.Itoa(number)) {
			continue
		}
		uid, err1 := strconv.Atoi(f[2])
		gid, err2 := strconv.Atoi(f[3])
		if err1 != nil || err2 != nil {
			return tool{}, fmt.Errorf("its /etc/passwd gives the user %q the ids %q and %q", user, f[2], f[3])
		}
		t, found = tool{Name: f[0], UID: uid, GID: gid}, true
		break
	}
	switch {
	case !found && user == toolAccount:
		return tool{}, nil
	case !found:
		return tool{}, fmt.Errorf("it says that programs run as %q, and its /etc/passwd has no such user", user)
	case t.UID < 0 || t.UID >= uidRange:
		return tool{}, fmt.Errorf("it says that programs run as %q, whose id is %d: those of a sandbox are below %d",
			user, t.UID, uidRange)
	case t.UID == 0:
		return tool{}, nil
	}
	if t.GID <= 0 || t.GID >= uidRange {
		t.GID = t.UID
	}
	if !plainName(t.Name) {
		t.Name = user
	}
	if t == (tool{Name: toolAccount, UID: toolUID, GID: toolUID}) {
		return tool{}, nil
	}
	return t, nil
}

// plainName reports whether a name of an account file is one to show and to put into variables.
func plainName(s string) bool {
	const most = 32
	return s != "" && len(s) <= most && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && !strings.ContainsRune("_.-", r)
	})
}

// ToolUser implements sandbox.Housed.
func (m *machine) ToolUser() string { return m.state.Tool.Name }

#!/usr/bin/env bash
# git's daily work on a directory: clone, commit, branch, merge, repack, collect garbage, and git's own check of the result.
#
#   git.sh DIRECTORY
. "$(dirname "$0")/lib.sh"

dir=$(need_directory "$@")
install_packages git
scratch "$dir"
export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@localhost GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@localhost
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null

# A repository of 1,400 files in 40 commits, on the local disk.
origin=$(mktemp -d)
trap 'cd /; rm -rf "$SCRATCH" "$origin"' EXIT
git init -q -b main "$origin"
for commit in $(seq 40); do
  mkdir -p "$origin/dir$((commit % 7))/sub$commit"
  for file in $(seq 35); do
    seq "$commit" "$((commit + file * 7))" >"$origin/dir$((commit % 7))/sub$commit/file$file"
  done
  git -C "$origin" add -A
  git -C "$origin" commit -q -m "commit $commit"
done

cd "$SCRATCH"
git clone -q --no-hardlinks "$origin" one
[ "$(git -C one rev-parse HEAD^{tree})" = "$(git -C "$origin" rev-parse HEAD^{tree})" ] || die "clone differs"
cd one
[ -z "$(git status --porcelain)" ] || die "a fresh clone is not clean"
git checkout -q -b topic HEAD~20
echo topic >topic.txt
git add topic.txt
git commit -q -m topic
git checkout -q main
git merge -q --no-edit topic
git mv dir0 moved
git commit -q -m moved
git rm -q -r dir1
git commit -q -m removed
git stash list >/dev/null
git gc -q --prune=now
git fsck --full --strict >/dev/null 2>&1 || die "fsck after gc: $(git fsck --full 2>&1 | tail -3)"
git repack -q -a -d -f
git fsck --full >/dev/null 2>&1 || die "fsck after repack"
[ -z "$(git status --porcelain)" ] || die "not clean after gc"
[ -f topic.txt ] && [ -d moved ] && [ ! -e dir0 ] && [ ! -e dir1 ] || die "the work tree is not what was committed"
cd ..
git clone -q one two
diff -r -x .git one two || die "clone within the directory differs"
git -C two push -q origin HEAD:refs/heads/pushed
[ "$(git -C one rev-parse pushed)" = "$(git -C two rev-parse HEAD)" ] || die "push"
echo "git: 1 passed, 0 failed"

"""Forms in which people and programs write secrets, from the manuals of tools and from what people paste into a chat.

They were written down before the rules for them, so that the share that leaks says something about other forms, too.
A form holds one secret:

    {p}  a password that a policy made people choose      {c}  a common password
    {h}  32 hexadecimal digits   {H}  64 of them           {a}  32 letters and digits   {b}  40 characters of base64
    {u}  a UUID   {B}  user:password in base64   {n}  24 letters, digits, dashes and underscores
"""

COMMANDS = r"""
echo '{p}' | sudo -S apt-get update
echo {c} | sudo -S -k whoami
sudo -S <<< "{p}" systemctl restart nginx
echo "deploy:{p}" | sudo chpasswd
printf 'root:{p}\n' | chpasswd
echo {p} | docker login -u ci --password-stdin registry.example.com
echo "{a}" | helm registry login -u ci --password-stdin ghcr.io
echo '{a}' | gh auth login --with-token
printf %s {p} | podman login --password-stdin -u me quay.io
htpasswd -b /etc/nginx/.htpasswd admin {p}
htpasswd -nbB admin '{p}'
htpasswd -bc .htpasswd bob {c}
redis-cli AUTH {p}
redis-cli -a {c} INFO
AUTH default {p}
redis-cli CONFIG SET requirepass {p}
mongosh -u admin -p {p} --authenticationDatabase admin
mongo mongodb://h/db -u root -p '{p}'
mongodump --host h -u root -p {c} --out d
mongoimport -u app -p{p} --db x
ldapsearch -x -D cn=admin,dc=example,dc=org -w {p} -b dc=example
ldapmodify -D cn=root -w '{c}' -f a.ldif
smbclient //server/share -U alice%{p}
smbclient -U 'CORP\alice%{c}' //s/x
mount -t cifs //s/x /mnt -o username=alice,password={p}
net use Z: \\server\share {p} /user:alice
rpcclient -U "admin%{p}" 10.0.0.1
openssl pkcs12 -in a.p12 -passin pass:{p} -nodes
openssl rsa -in k.pem -passout pass:{c} -out x
openssl enc -aes-256-cbc -pbkdf2 -k {p} -in a
openssl enc -d -aes-256-cbc -pass pass:{p} -in a
7z a -p{p} backup.7z dir
7z x -p'{c}' backup.7z
7za a -t7z -p"{p}" b.7z d
zip -P {p} -r a.zip dir
unzip -P {c} a.zip
zip -e --password {p} a.zip b
rar a -hp{p} a.rar d
sqlplus scott/{p}@orcl
sqlplus system/{c}@//db:1521/XE
sqlplus / as sysdba <<< "alter user x identified by {p};"
impdp system/{p}@db directory=d
twine upload -u __token__ -p {a} dist/*
twine upload --username me --password {c} dist/*
cargo login {a}
cargo publish --token {a}
vault login {n}
vault login -method=userpass username=bob password={p}
vault kv put secret/app password={c}
vault write auth/approle/login role_id={u} secret_id={u}
poetry config pypi-token.pypi {a}
poetry config http-basic.private me {p}
poetry publish --username me --password {p}
npm config set //registry.example.com/:_authToken {a}
npm config set _auth {B}
npm set //r.example/:_password {b}
yarn config set npmAuthToken {a}
pip config set global.index-url https://me:{p}@pypi.example/simple
bundle config set --global gems.example.com me:{p}
composer config --global http-basic.repo.example.com me {p}
composer config github-oauth.github.com {h}
nuget sources add -Name x -Source u -Username me -Password {p}
dotnet nuget push a.nupkg -k {a} -s u
dotnet user-secrets set "Db:Password" "{p}"
gem push x.gem --key {a}
curl -u admin:{c} https://x/
curl -uadmin:{p} https://x/
curl --user admin:{p} https://x/
curl -s -k -u "me:{p}" https://x
curl -H "X-Api-Key: {a}" https://x
curl -H 'X-Auth-Token: {h}' https://x
curl -H "PRIVATE-TOKEN: {n}" https://gitlab.example/api/v4
curl -H "Authorization: {h}" https://x
curl -H "apikey: {a}" https://x
curl -d "username=bob&password={c}" https://x/login
curl -d '{"username":"bob","password":"{p}"}' https://x/login
curl --data-urlencode "password={p}" https://x
curl -F password={c} https://x
curl -b "session={a}" https://x
curl --cookie "PHPSESSID={h}" https://x
curl "https://x/api?api_key={a}"
curl "https://x/api?access_token={n}&x=1"
curl https://x/cb?code={n}
curl --proxy-user me:{p} -x http://proxy:3128 https://x
curl -U me:{p} -x http://proxy:3128 https://x
wget --user=me --password={c} https://x
wget --http-password={p} https://x
wget --header="Authorization: Bearer {a}" https://x
http -a me:{p} https://x
http https://x X-API-Key:{a}
mysql -uroot -p{p} shop
mysql -h db -u root --password={c} shop
mysqldump -u root -p'{p}' shop
mysqladmin -u root password '{p}'
MYSQL_PWD={p} mysql -u root
PGPASSWORD={c} psql -h db -U app
PGPASSWORD='{p}' pg_dump app
psql "host=db user=app password={p} dbname=x"
psql postgresql://app:{p}@db/x
psql -c "ALTER USER app WITH PASSWORD '{p}'"
psql -c "CREATE ROLE app LOGIN PASSWORD '{c}'"
mysql -e "CREATE USER 'a'@'%' IDENTIFIED BY '{p}'"
mysql -e "SET PASSWORD FOR 'a'@'%' = PASSWORD('{p}')"
mysql -e "ALTER USER root IDENTIFIED WITH mysql_native_password BY '{c}'"
sqlcmd -S db -U sa -P {p} -Q "select 1"
bcp t out f -U sa -P'{p}'
clickhouse-client --user default --password {p}
cqlsh -u cassandra -p {p} host
influx -username admin -password {c}
snowsql -a acct -u me --password {p}
rabbitmqctl add_user bob {p}
rabbitmqctl change_password bob {c}
rabbitmqadmin -u guest -p {p} list queues
mosquitto_pub -h h -u me -P {p} -t t -m x
mosquitto_passwd -b file bob {p}
sshpass -p {c} ssh me@h
sshpass -p'{p}' scp a me@h:
plink -ssh me@h -pw {p}
pscp -pw {c} a me@h:
winscp /command "open sftp://me:{p}@h/"
lftp -u me,{p} ftp.example.com
lftp -e "open -u me,{c} h"
ncftpput -u me -p {p} h / a
xfreerdp /u:me /p:{p} /v:h
rdesktop -u me -p {c} h
net user bob {p} /add
useradd -p {p} bob
echo {p} | passwd --stdin bob
echo "bob:{p}" | chpasswd -e
keytool -genkey -storepass {p} -keypass {c} -alias x
keytool -importkeystore -srcstorepass {p} -deststorepass {p}
jarsigner -storepass {c} a.jar x
signtool sign /f a.pfx /p {p} a.exe
security unlock-keychain -p {p} login.keychain
security add-generic-password -a me -s svc -w {p}
gpg --batch --passphrase {p} -d a.gpg
gpg --passphrase='{c}' -c a
ssh-keygen -t rsa -N {p} -f k
ssh-keygen -p -P {p} -N x -f k
cryptsetup luksFormat d <<< {p}
ansible-playbook site.yml -e "ansible_become_pass={p}"
ansible-playbook x.yml --extra-vars "db_password={c}"
terraform apply -var="db_password={p}"
terraform apply -var 'admin_token={a}'
helm install x c --set auth.rootPassword={p}
helm upgrade x c --set-string mysql.auth.password='{c}'
kubectl create secret generic db --from-literal=password={p}
kubectl create secret generic db --from-literal=API_KEY={a}
kubectl create secret docker-registry r --docker-username=me --docker-password={p}
kubectl config set-credentials me --token={a}
kubectl --token={n} get pods
oc login --token={n} --server=https://x
oc login -u admin -p {p} https://x
az login -u me@x.org -p {p}
az login --service-principal -u {u} -p {n} --tenant {u}
az sql server create -u admin --admin-password {p}
az keyvault secret set --vault-name v --name db --value {p}
aws secretsmanager create-secret --name x --secret-string {p}
aws ssm put-parameter --name /x/db_password --type SecureString --value {p}
aws rds create-db-instance --master-username a --master-user-password {p}
aws iam create-login-profile --user-name b --password {p}
aws cognito-idp admin-set-user-password --username b --password {p} --permanent
gcloud sql users create bob --instance=i --password={p}
gcloud sql users set-password root --password {c}
heroku config:set DB_PASSWORD={p}
heroku config:set SECRET_KEY_BASE={H}
fly secrets set API_TOKEN={a}
flyctl secrets set STRIPE_KEY={a}
wrangler secret put TOKEN <<< {a}
gh secret set TOKEN --body {a}
gh secret set TOKEN -b"{a}"
vercel --token {n} deploy
netlify deploy --auth {n}
doctl auth init -t {H}
sentry-cli --auth-token {H} releases list
ngrok config add-authtoken {n}
ngrok authtoken {n}
cloudflared service install {n}
tailscale up --authkey {n}
consul acl set-agent-token agent {u}
consul kv get -token={u} x
nomad status -token {u}
export CONSUL_HTTP_TOKEN={u}
docker run -e MYSQL_ROOT_PASSWORD={p} mysql
docker run --env POSTGRES_PASSWORD={c} postgres
docker service create --env "DB_PASS={p}" x
docker build --build-arg NPM_TOKEN={a} .
docker login -u me -p {c} r.example.com
docker swarm join --token {n} 10.0.0.1:2377
kubeadm join 10.0.0.1:6443 --token {n}
kinit bob <<< {p}
echo {p} | kinit bob@EXAMPLE.ORG
git clone https://me:{p}@git.example.com/a.git
git clone https://{a}@github.com/o/r.git
git clone https://oauth2:{n}@gitlab.com/o/r.git
git remote set-url origin https://me:{a}@git.example.com/a
git -c http.extraHeader="Authorization: Basic {B}" fetch
svn co --username me --password {p} https://x
hg clone https://me:{p}@hg.example/a
jfrog config add x --user me --password {p}
jf rt u a r/ --access-token {n}
mvn deploy -Dpassword={p}
gradle publish -PnexusPassword={c}
java -jar a.jar --spring.datasource.password={p}
java -Djavax.net.ssl.keyStorePassword={c} -jar a.jar
python manage.py x --password {c}
./run.sh --db-pass {p}
./run.sh --api-token={a}
./run.sh --secret {n}
./run.sh -password {p}
tool --access-key {a} --secret-key {b}
tool --passphrase {p}
ENV DB_PASSWORD {p}
ENV API_TOKEN={a}
set -x DB_PASSWORD {c}
set -gx API_TOKEN {a}
setx DB_PASSWORD {p}
setx /M API_TOKEN {a}
setenv DB_PASSWORD {c}
set DB_PASSWORD={p}
$env:DB_PASSWORD = "{p}"
$env:API_TOKEN='{a}'
[Environment]::SetEnvironmentVariable("DB_PASSWORD", "{p}", "User")
$pw = ConvertTo-SecureString "{p}" -AsPlainText -Force
$pw = ConvertTo-SecureString -String '{c}' -AsPlainText -Force
New-Object PSCredential("bob", (ConvertTo-SecureString '{p}' -AsPlainText -Force))
Connect-X -Credential bob -Password {p}
cmdkey /add:h /user:me /pass:{p}
export DB_PASSWORD={c}
export DB_PASSWORD="{p}"
local PASSWORD='{p}'
read -r TOKEN <<< "{a}"
PASS={p} ./deploy.sh
""".strip().splitlines()

FILES = tuple(
    form.strip("\n")
    for form in r"""
machine api.example.com login bob password {c}
---
machine api.example.com
  login bob
  password {p}
---
default login anonymous password {p}
---
db.example.com:5432:app:bob:{p}
---
*:*:*:postgres:{c}
---
[client]
user = root
password = {c}
---
[client]
user=root
password="{p}"
---
[database]
host = localhost
password = {p}
---
[pypi]
username = __token__
password = {a}
---
[default]
aws_access_key_id = AKIAX
aws_secret_access_key = {b}
---
spring.datasource.username=app
spring.datasource.password={c}
---
db.password={p}
db.user=app
---
jdbc.password = {c}
---
<property name="password" value="{p}"/>
---
<add key="DbPassword" value="{c}" />
---
<server><id>x</id><username>me</username><password>{p}</password></server>
---
<entry key="api.token">{a}</entry>
---
<add name="x" connectionString="Server=db;User Id=sa;Password={p};" />
---
Server=db;Database=x;Uid=app;Pwd={c};
---
jdbc:sqlserver://db:1433;databaseName=x;user=sa;password={p};
---
jdbc:mysql://db/x?user=app&password={c}
---
jdbc:oracle:thin:scott/{p}@db:1521:orcl
---
DSN=x;UID=app;PWD={p}
---
AccountName=x;AccountKey={b}{b}=;EndpointSuffix=core.windows.net
---
mongodb://app:{p}@db:27017/x
---
redis://:{c}@cache:6379/0
---
amqp://app:{p}@mq/
---
https://bob:{c}@example.com/x
---
ftp://bob:{p}@ftp.example.com
---
smtp://bob%40x.org:{p}@smtp.example.com:587
---
DATABASE_URL=postgres://app:{p}@db/x
---
POSTGRES_PASSWORD={c}
---
MYSQL_ROOT_PASSWORD: {c}
---
      - POSTGRES_PASSWORD={p}
---
    environment:
      DB_PASS: {p}
---
password: {c}
---
password: "{p}"
---
password: '{c}'
---
  smtp_password:
    {p}
---
{"password": "{c}"}
---
{
  "db": {
    "password":
      "{p}"
  }
}
---
{"name": "DB_PASSWORD", "value": "{p}"}
---
{"value": "{c}", "name": "DB_PASSWORD"}
---
{"Key": "API_TOKEN", "Value": "{a}"}
---
- name: DB_PASSWORD
  value: "{p}"
---
- value: {c}
  name: DB_PASSWORD
---
apiVersion: v1
kind: Secret
stringData:
  password: {p}
---
{"http-basic": {"repo.example.com": {"username": "me", "password": "{p}"}}}
---
{"github-oauth": {"github.com": "{h}"}}
---
{"bearer": {"repo.example.com": "{n}"}}
---
{"gitlab-token": {"gitlab.com": "{n}"}}
---
{"auths": {"r.example.com": {"auth": "{B}"}}}
---
//registry.example.com/:_authToken={a}
---
_auth={B}
---
npmAuthToken: "{a}"
---
:rubygems_api_key: {a}
---
[registry]
token = "{a}"
---
username,password
bob,{p}
---
id,user,password,role
1,bob,{c},admin
2,eve,Sommer-2031,user
---
user;passwort
bob;{p}
---
| user | password |
|---|---|
| bob | {p} |
---
| Password | {c} |
---
user: bob
pass: {p}
---
login: bob / {p}
---
username: bob, password: {c}
---
user=bob&password={c}&submit=1
---
grant_type=password&username=bob&password={p}
---
client_id=x&client_secret={n}
---
------x
Content-Disposition: form-data; name="password"

{p}
------x--
---
Content-Disposition: form-data; name="token"

{a}
---
<input type="hidden" name="csrf_token" value="{a}">
---
<input name="authenticity_token" type="hidden" value="{b}">
---
<input type="hidden" name="_csrf" value="{u}">
---
<meta name="csrf-token" content="{b}">
---
<input type="password" name="p" value="{p}">
---
X-CSRF-Token: {a}
---
X-XSRF-TOKEN: {n}
---
Cookie: session={a}; theme=dark
---
Set-Cookie: JSESSIONID={h}; Path=/; HttpOnly
---
https://example.com/app;jsessionid={h}
---
.example.com	TRUE	/	TRUE	1799999999	sessionid	{a}
---
#HttpOnly_.example.com	TRUE	/	FALSE	0	sid	{h}
---
https://example.com/reset-password?token={a}
---
https://example.com/reset/{a}
---
https://example.com/users/password/edit?reset_password_token={n}
---
https://example.com/verify-email/{H}
---
https://example.com/invite/{n}
---
https://example.com/magic-link?t={a}
---
https://example.com/callback?code={n}&state=x
---
https://example.com/x?session={a}
---
https://example.com/x?auth={h}
---
https://example.com/x?jwt={n}
---
https://cas.example.com/login?ticket=ST-1-{a}
---
https://example.com/f?expires=1&sig={h}
---
https://example.com/f?sid={h}
---
wss://example.com/ws?key={a}
---
Authorization: Bearer {n}
---
Authorization: Basic {B}
---
Authorization: Token {h}
---
authorization: {h}
---
Proxy-Authorization: Basic {B}
---
X-Vault-Token: {n}
---
X-Amz-Security-Token: {b}
---
apikey: {a}
---
Ocp-Apim-Subscription-Key: {h}
---
<hudson.util.Secret>{AQAAABAAAAAQ{b}=}</hudson.util.Secret>
---
<password>{AQAAABAAAAAw{b}{b}=}</password>
---
bob:$apr1$abcdefgh${a}
---
root:$6$abcdefgh${a}{a}:19000:0:99999:7:::
---
admin:$2y$10${a}{n}
---
wpa_passphrase="{p}"
---
network={
  ssid="home"
  psk="{c}"
}
---
requirepass {p}
---
masterauth {c}
---
rootpw {p}
---
bindpw {c}
---
bind_password = {p}
---
ldap_default_authtok = {c}
---
smtp_sasl_password_maps = x
relayhost.example.com bob:{p}
---
auth-user-pass
bob
{p}
---
login.username=bob
login.password={p}
---
GRANT ALL ON *.* TO 'a'@'%' IDENTIFIED BY '{c}';
---
CREATE LOGIN x WITH PASSWORD = '{p}';
---
CREATE USER x PASSWORD '{p}';
---
ALTER USER x IDENTIFIED BY {p};
---
INSERT INTO users (name, password) VALUES ('bob', '{p}');
---
UPDATE users SET password = '{c}' WHERE id = 1;
---
SELECT * FROM u WHERE password = '{p}'
---
-----BEGIN OPENSSH PRIVATE KEY-----
{b}{b}
-----END OPENSSH PRIVATE KEY-----
---
PrivateKey = {b}aBc=
---
PresharedKey = {b}aBc=
---
secret_key_base: {H}
---
SECRET_KEY = '{n}{n}'
---
cookieKey: {a}
---
app.jwt.secret={n}
---
JWT_SECRET={c}
---
jwtSecret: '{p}'
---
encryptionKey = "{b}"
---
sessionSecret: "{n}",
---
"apiKey": "{a}",
---
config.api_key = "{a}"
---
const token = "{n}";
---
var password = '{p}';
---
String password = "{c}";
---
password := "{p}"
---
let pw = "{p}";
---
dbPw: '{p}',
---
connect(host, user="bob", password="{c}")
---
new Client({ user: 'bob', password: '{p}' })
---
auth=("bob", "{p}")
---
auth: { user: 'bob', pass: '{c}' }
---
requests.get(u, auth=('bob', '{c}'))
---
DriverManager.getConnection(url, "bob", "{p}")
---
password = os.environ.get("DB_PASSWORD", "{p}")
---
const pw = process.env.DB_PASSWORD || '{c}';
---
password: ENV.fetch('DB_PASSWORD') { '{p}' }
---
password: ${DB_PASSWORD:-{p}}
---
PASSWORD="${PASSWORD:-{c}}"
---
{{ password | default("{p}") }}
---
define('DB_PASSWORD', '{p}');
---
$password = '{c}';
---
'password' => '{p}',
---
:password => "{c}",
---
(setq password "{p}")
---
password = <<EOF
{p}
EOF
---
the password is {c}
---
The password is "{p}".
---
my password is {p}, please use it
---
pw is {p}
---
pw: {c}
---
password for bob: {p}
---
use {p} as the password
---
login with bob and the password {p}
---
credentials: bob / {p}
---
creds bob:{p}
---
user bob, pass {p}
---
User: bob Password: {c}
---
Passwort: {c}
---
mot de passe : {p}
---
contraseña: {p}
---
the token is {a}
---
here is my api key: {a}
---
API key - {a}
---
the secret is {n}
---
PIN: 482913 password: {c}
---
Enter password: {p}
---
Password for 'https://bob@git.example.com': {p}
---
New password: {p}
Retype new password: {p}
---
Generated password: {n}
---
Your temporary password is {p}
---
root password: {c}
---
recovery codes: {n}
---
totp secret: {a}
---
otpauth://totp/x:bob?secret={a}&issuer=x
---
xoxd-{n}{n}
---
newrelic_license_key = {h}aaaaNRAL
---
ATATT3xFfGF0{b}{b}
---
glpat-{n}
---
\u001b[01;31m\u001b[Kpassword\u001b[m\u001b[K={p}
---
{"token": "\u001b[0;32m{a}\u001b[0m"}
""".split("\n---\n")  # noqa: SIM905  a list of them would be hard to read
)
